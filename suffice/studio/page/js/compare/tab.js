// The tab of comparisons: the verdict, cost against quality, curves, tables.

const COMPARE = { listed: [], chosen: null, cost: "flops", curve: "validation_accuracy" };

function buildCompare(panel) {
  const wrong = notice("compare-error");
  const list = element("ul", { class: "models", "aria-label": "Comparisons" });
  const shown = element("div", { id: "comparison", "aria-live": "polite" });
  const open = latest(
    (results) => {
      tell(wrong, null);
      replace(shown, comparison(results, changed));
    },
    (error) => {
      replace(shown);
      tell(wrong, error);
    },
  );
  const changed = () => {
    const { root, name } = COMPARE.listed[COMPARE.chosen];
    open("comparison", { root, name, cost: COMPARE.cost });
  };
  const wait = () => shown.firstChild || replace(shown, element("p", { class: "hint" }, "Reading …"));
  const choose = (at) => {
    COMPARE.chosen = at;
    wait();
    COMPARE.cost = "flops";
    replace(list, COMPARE.listed.map((one, n) => comparisonItem(one, n, choose)));
    changed();
  };
  const look = latest(
    ({ comparisons }) => {
      tell(wrong, null);
      COMPARE.listed = comparisons;
      if (comparisons.length) choose(Math.min(COMPARE.chosen || 0, comparisons.length - 1));
      else replace(shown, element("p", {}, "There is nothing to open yet."));
    },
    (error) => {
      replace(shown);
      tell(wrong, error);
    },
  );
  panel.append(
    element(
      "div",
      { class: "columns" },
      element(
        "aside",
        { "aria-label": "Comparisons" },
        element("h2", {}, "Comparisons"),
        list,
        element("button", { type: "button", on: { click: () => look("comparisons", {}) } }, "Look again"),
        element("p", { class: "hint" }, "Yours: suffice studio --results FOLDER, a folder of suffice compare or suffice reproduce, or one with such folders."),
      ),
      element("div", { class: "main" }, wrong, shown),
    ),
  );
  wait();
  look("comparisons", {});
}

function comparisonItem(one, at, choose) {
  const chosen = at === COMPARE.chosen;
  return element("li", { class: chosen ? "chosen" : null },
    element("button", { type: "button", "aria-pressed": String(chosen), on: { click: () => choose(at) } }, one.label));
}

function comparison(results, changed) {
  const costs = Object.fromEntries(results.costs.map((name) => [name, COST_LABELS[name]]));
  const curves = element("div", { class: "curves" });
  const drawCurves = () => replace(curves, curvesOf(results, COMPARE.curve));
  drawCurves();
  return [
    element("p", { class: "kicker" }, `${results.recipe}${results.scale === "small" ? ", small scale" : ""} · margin ${results.margin_points} points · against ${results.baseline}`),
    element("h2", {}, results.title),
    element("p", { class: `verdict ${results.outcome}` }, results.sentence),
    element("details", { class: "group" }, element("summary", {}, "What is and is not established"),
      element("ul", {}, results.notes.map((note) => element("li", {}, note)))),
    element("div", { class: "heading" }, element("h3", {}, "Cost against quality"),
      choiceField("Cost", costs, results.cost, (cost) => {
        COMPARE.cost = cost;
        changed();
      }, { id: "compare-cost" })),
    tradeoffChart(results),
    element("p", { class: "hint" }, "The line joins what nothing else beats at a cost no higher. Bars are 95% intervals of each mean by itself; the verdict rests on differences paired by seed."),
    element("div", { class: "heading" }, element("h3", {}, "Over epochs"),
      choiceField("Measure", results.curve_names, COMPARE.curve, (name) => {
        COMPARE.curve = name;
        drawCurves();
      }, { id: "compare-curve" })),
    curves,
    results.tables.map(sheetTable),
    element("h3", {}, "How it was made"),
    element("div", { class: "code" }, element("pre", { tabindex: 0 }, results.command), copyButton(() => results.command)),
  ];
}

function curvesOf(results, name) {
  const share = name.endsWith("accuracy");
  const heads = [...new Set(results.curves[name].map((one) => one.heads))];
  const lines = results.curves[name].map((one) => ({
    name: heads.length > 1 ? `${one.mechanism} (${one.heads})` : one.mechanism,
    heads: one.heads,
    number: results.looks[one.mechanism],
    points: one.points.map(([epoch, value]) => [epoch, share ? 100 * value : value]),
  }));
  if (!lines.some((line) => line.points.length > 1)) {
    return [element("p", { class: "hint" }, "One epoch was trained: there is no curve.")];
  }
  return heads.map((own) => {
    const of = lines.filter((line) => line.heads === own && line.points.length);
    return element("figure", {},
      heads.length > 1 && element("figcaption", {}, `${own} head${own > 1 ? "s" : ""}`),
      lineChart({
        lines: of,
        title: `${results.curve_names[name]} over epochs`,
        xName: "epoch",
        yName: results.curve_names[name] + (share ? ", %" : ""),
        xFormat: (epoch) => (Number.isInteger(epoch) ? String(epoch) : ""),
        yFormat: (value) => String(Number(value.toPrecision(4))),
        more: heads.length > 1 ? { width: Math.min(520, chartWidth()), height: 300, left: 56 } : {},
      }),
      legend(of));
  });
}

function sheetTable(sheet) {
  const words = sheet.columns.map((name, at) => at === 0 || sheet.words.includes(name));
  const row = ({ cells, paper, first }) =>
    element("tr", { class: [paper && "paper", first && "first"].filter(Boolean).join(" ") || null },
      cells.map((cell, at) => element(at ? "td" : "th", at ? { class: words[at] ? "text" : null } : { scope: "row" }, cell)));
  return [
    element("h3", {}, sheet.title),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": sheet.title },
      element("table", {},
        element("thead", {}, element("tr", {}, sheet.columns.map((name, at) => element("th", { scope: "col", class: words[at] ? "text" : null }, name)))),
        element("tbody", {}, sheet.lines.map(row)))),
    element("p", { class: "hint" }, sheet.caption),
  ];
}

tab("compare", "Compare", buildCompare);
