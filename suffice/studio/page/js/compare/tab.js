// The tab of comparisons: the verdict, cost against quality, curves, tables.

const COMPARE = { found: [], chosen: null, cost: "flops", curve: "validation_accuracy" };

function buildCompare(panel) {
  const wrong = notice("compare-error");
  const list = element("ul", { class: "models", "aria-label": "Comparisons" });
  const shown = element("div", { id: "comparison", "aria-live": "polite" });
  const open = latest(
    (told) => {
      tell(wrong, null);
      replace(shown, comparison(told, changed));
    },
    (error) => {
      replace(shown);
      tell(wrong, error);
    },
  );
  const changed = () => {
    const { root, name } = COMPARE.found[COMPARE.chosen];
    open("comparison", { root, name, cost: COMPARE.cost });
  };
  const wait = () => shown.firstChild || replace(shown, element("p", { class: "hint" }, "Reading …"));
  const choose = (at) => {
    COMPARE.chosen = at;
    wait();
    COMPARE.cost = "flops";
    replace(list, COMPARE.found.map((one, n) => comparisonItem(one, n, choose)));
    changed();
  };
  const look = latest(
    ({ found }) => {
      tell(wrong, null);
      COMPARE.found = found;
      if (found.length) choose(Math.min(COMPARE.chosen || 0, found.length - 1));
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
    element("button", { type: "button", "aria-pressed": String(chosen), on: { click: () => choose(at) } }, one.told));
}

function comparison(told, changed) {
  const costs = Object.fromEntries(told.costs.map((name) => [name, COSTS_TOLD[name]]));
  const curves = element("div", { class: "curves" });
  const drawCurves = () => replace(curves, curvesOf(told, COMPARE.curve));
  drawCurves();
  return [
    element("p", { class: "kicker" }, `${told.recipe}${told.scale === "small" ? ", small scale" : ""} · margin ${told.margin_points} points · against ${told.baseline}`),
    element("h2", {}, told.title),
    element("p", { class: `verdict ${told.outcome}` }, told.sentence),
    element("details", { class: "group" }, element("summary", {}, "What is and is not established"),
      element("ul", {}, told.notes.map((note) => element("li", {}, note)))),
    element("div", { class: "heading" }, element("h3", {}, "Cost against quality"),
      choiceField("Cost", costs, told.cost, (cost) => {
        COMPARE.cost = cost;
        changed();
      }, { id: "compare-cost" })),
    tradeoffChart(told),
    element("p", { class: "hint" }, "The line joins what nothing else beats at a cost no higher. Bars are 95% intervals of each mean by itself; the verdict rests on differences paired by seed."),
    element("div", { class: "heading" }, element("h3", {}, "Over epochs"),
      choiceField("Measure", told.curve_names, COMPARE.curve, (name) => {
        COMPARE.curve = name;
        drawCurves();
      }, { id: "compare-curve" })),
    curves,
    told.tables.map(sheetTable),
    element("h3", {}, "How it was made"),
    element("div", { class: "code" }, element("pre", { tabindex: 0 }, told.command), copyButton(() => told.command)),
  ];
}

function curvesOf(told, name) {
  const share = name.endsWith("accuracy");
  const heads = [...new Set(told.curves[name].map((one) => one.heads))];
  const lines = told.curves[name].map((one) => ({
    name: heads.length > 1 ? `${one.mechanism} (${one.heads})` : one.mechanism,
    heads: one.heads,
    number: told.looks[one.mechanism],
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
        title: `${told.curve_names[name]} over epochs`,
        xName: "epoch",
        yName: told.curve_names[name] + (share ? ", %" : ""),
        xTold: (epoch) => (Number.isInteger(epoch) ? String(epoch) : ""),
        yTold: (value) => String(Number(value.toPrecision(4))),
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
