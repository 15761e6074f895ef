// The tab of comparisons: the verdict, cost against quality, curves, tables.

const COMPARE = { listed: [], chosen: null, root: 0, name: "", cost: "flops", curve: "validation_accuracy", all: false };

const readCompare = () => ({ root: COMPARE.root, name: COMPARE.name, cost: COMPARE.cost, curve: COMPARE.curve });
const writeCompare = (data) => Object.assign(COMPARE, known({ root: 0, name: "", cost: "", curve: "" }, data));

function buildCompare(panel) {
  sharedState("compare", readCompare, writeCompare);
  const wrong = notice("compare-error");
  const list = element("ul", { class: "models", "aria-label": "Comparisons" });
  const shown = element("div", { id: "comparison" });
  const open = latest(
    (results) => {
      tell(wrong, null);
      remember("compare");
      replace(shown, comparison(results, changed));
      announce(`${results.title}: ${results.sentence}`);
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
  const choose = (at, keep) => {
    COMPARE.chosen = at;
    ({ root: COMPARE.root, name: COMPARE.name } = COMPARE.listed[at]);
    wait();
    if (keep !== true) COMPARE.cost = "flops";
    replace(list, COMPARE.listed.map((one, n, every) => [
      one.group !== every[n - 1]?.group && element("li", { class: "group-name" }, one.group),
      comparisonItem(one, n, choose),
    ]));
    changed();
  };
  const look = latest(
    ({ comparisons }) => {
      tell(wrong, null);
      COMPARE.listed = comparisons;
      const same = comparisons.findIndex((one) => one.root === COMPARE.root && one.name === COMPARE.name);
      if (comparisons.length) choose(same >= 0 ? same : Math.min(COMPARE.chosen || 0, comparisons.length - 1), true);
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
        element("button", { type: "button", on: { click: () => look("comparisons", {}) } }, "Refresh"),
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
  const curves = partOf("curves", element("div", { class: "curves" }));
  if (!results.curve_names[COMPARE.curve]) COMPARE.curve = Object.keys(results.curve_names)[0];
  const names = [...new Set(results.points.map((one) => one.mechanism))];
  const shown = COMPARE.all || names.length <= results.drawn.length ? results : only(results);
  const drawCurves = () => replace(curves, curvesOf(shown, COMPARE.curve));
  const tradeoff = tradeoffChart(shown);
  const file = fileName(results.title);
  drawCurves();
  return [
    element("p", { class: "kicker" }, `${results.recipe}${results.scale === "small" ? ", small scale" : ""} · margin ${results.margin_text} · against ${results.baseline}`),
    element("h2", {}, results.title),
    element("p", { class: `verdict ${results.outcome.replaceAll(" ", "-")}` }, results.sentence),
    element("details", { class: "group" }, element("summary", {}, "What is and is not established"),
      element("ul", {}, results.notes.map((note) => element("li", {}, note)))),
    names.length > results.drawn.length && switchField(`Draw all ${names.length} mechanisms`, COMPARE.all, (all) => {
      COMPARE.all = all;
      changed();
    }, { id: "compare-all", hint: "Else the baseline and the five that suffice or come closest." }),
    element("div", { class: "heading" }, element("h3", {}, "Cost against quality"),
      choiceField("Cost", costs, results.cost, (cost) => {
        COMPARE.cost = cost;
        changed();
      }, { id: "compare-cost" })),
    partOf("tradeoff", element("div", {}, tradeoff,
      saveTools(`${file}-${results.cost}`, { svg: () => tradeoff, rows: () => tradeoffRows(results), label: "cost against quality", picture: "tradeoff" }))),
    element("p", { class: "hint" }, "The line joins what nothing else beats at a cost no higher. Bars are 95% intervals of each mean by itself; dotted: what learning nothing scores. The verdict rests on differences paired by seed."),
    element("div", { class: "heading" }, element("h3", {}, "Over epochs"),
      choiceField("Measure", results.curve_names, COMPARE.curve, (name) => {
        COMPARE.curve = name;
        remember("compare");
        drawCurves();
      }, { id: "compare-curve" })),
    curves,
    results.tables.map(sheetTable),
    element("h3", {}, "How it was made"),
    element("div", { class: "code" }, element("pre", { tabindex: 0 }, results.command), copyButton(() => results.command)),
  ];
}

// The results with the mechanisms alone that are drawn at first.
function only(results) {
  const keep = (one) => results.drawn.includes(one.mechanism);
  const curves = Object.fromEntries(Object.entries(results.curves).map(([name, lines]) => [name, lines.filter(keep)]));
  return { ...results, points: results.points.filter(keep), curves };
}

const fileName = (title) => title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "comparison";

function tradeoffRows(results) {
  const head = ["mechanism", "heads", COST_LABELS[results.cost], results.quality.name, "low", "high", "on the front", "verdict"];
  return [head, ...results.points.map((one) => [one.mechanism, one.heads, one.cost, one.mean, one.low, one.high, one.front, one.verdict])];
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
    const chart = lineChart({
      lines: of,
      title: `${results.curve_names[name]} over epochs`,
      xName: "epoch",
      yName: results.curve_names[name] + (share ? ", %" : ""),
      xFormat: String,
      yFormat: (value) => String(Number(value.toPrecision(4))),
      wholes: true,
      more: heads.length > 1 ? { width: Math.min(520, chartWidth()), height: 300, left: 56 } : {},
    });
    const rows = () => [["mechanism", "heads", "epoch", results.curve_names[name]], ...of.flatMap((line) => line.points.map((point) => [line.name, line.heads, ...point]))];
    return element("figure", {},
      heads.length > 1 && element("figcaption", {}, `${own} head${own > 1 ? "s" : ""}`),
      chart,
      legend(of),
      saveTools(`${fileName(results.title)}-${name}-${own}`, { svg: () => chart, rows, label: `${results.curve_names[name]}${heads.length > 1 ? `, ${own} heads` : ""}`, picture: "curves" }));
  });
}

function sheetTable(sheet) {
  const words = sheet.columns.map((name, at) => at === 0 || sheet.words.includes(name));
  const row = ({ cells, reference, first }) =>
    element("tr", { class: [reference && "reference", first && "first"].filter(Boolean).join(" ") || null },
      cells.map((cell, at) => element(at ? "td" : "th", at ? { class: words[at] ? "text" : null } : { scope: "row" }, cell)));
  return [
    element("h3", {}, sheet.title),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": sheet.title },
      element("table", {},
        element("thead", {}, element("tr", {}, sheet.columns.map((name, at) => element("th", { scope: "col", class: words[at] ? "text" : null }, name)))),
        element("tbody", {}, sheet.lines.map(row)))),
    element("p", { class: "hint" }, sheet.caption),
    saveTools(fileName(sheet.title), { rows: () => [sheet.columns, ...sheet.lines.map((line) => line.cells)], label: `the table "${sheet.title}"` }),
  ];
}

tab("compare", "Compare", buildCompare);
