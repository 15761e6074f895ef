// A published article's figures beside its formula.

const DIGITS_CUT = 0.02; // error of two printed digits that were cut, not rounded

// The article's claims, with the bytes that its formula gives and whether they are those printed.
function articleClaims() {
  const { model, claims } = FACTS.calculator.article;
  return claims.map((claim) => {
    const computed = stateOf({ ...FACTS.calculator.empty, ...model, ...claim.model }, claim.length);
    return { ...claim, computed, agrees: Math.abs(claim.printed - computed) <= DIGITS_CUT * computed };
  });
}

function articleNote() {
  const { source, formula } = FACTS.calculator.article;
  const claims = articleClaims();
  const wrong = claims.filter((claim) => !claim.agrees);
  const row = (claim) =>
    element(
      "tr",
      { class: claim.agrees ? null : "off" },
      element("th", { scope: "row" }, claim.where),
      element("td", {}, claim.says),
      element("td", { title: exact(claim.computed) }, bytes(claim.computed), element("small", {}, `${(claim.computed / 1e6).toLocaleString("en", { maximumFractionDigits: 2 })} MB`)),
      element("td", { class: claim.agrees ? "good" : "bad" }, claim.agrees ? "agrees" : "does not"),
      element("td", { class: "text" }, claim.note || ""),
    );
  const heads = ["Where", "Printed", "By the formula", "Verdict", "Why"];
  return element(
    "details",
    { class: "group article", id: "article" },
    element("summary", {}, `A published calculator, checked: ${wrong.length} of ${claims.length} figures are not what its formula gives`),
    element("p", {}, `${source}. Its formula: size = ${formula}. Most of the figures that differ are of other sizes than those printed next to them; its calculator's 8192 B are a token in one layer, not in the model.`),
    element(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "The article's figures" },
      element(
        "table",
        {},
        element("thead", {}, element("tr", {}, heads.map((name) => element("th", { scope: "col", class: name === "Why" ? "text" : null }, name)))),
        element("tbody", {}, claims.map(row)),
      ),
    ),
  );
}
