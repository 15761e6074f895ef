// What the calculator found, as a table, bars and a plot.

function sizeCell(value, { strong = false } = {}) {
  return element("td", { class: strong ? "strong" : null, title: exact(value) }, bytes(value));
}

function nameCell({ model, number }) {
  return element(
    "th",
    { scope: "row" },
    element("span", { class: `swatch series-${(number % SERIES) + 1}`, "aria-hidden": "true" }),
    model.name,
  );
}

function perLayer(answer) {
  return answer.layers.map((layer) => {
    const kind = { window: "window", full: "full", sums: "sums" }[layer.kind];
    const count = answer.layers.length > 1 ? ` × ${layer.count} ${kind}` : "";
    return element("div", { title: exact(layer.state) }, `${bytes(layer.state)}${count}`);
  });
}

function perToken(answer) {
  const grow = answer.layers.filter((layer) => layer.per_token);
  if (!grow.length) return ["0 B", "nothing grows"];
  const one = grow[0].per_token;
  return [bytes(answer.per_token), `${bytes(one)} in each of ${grow.reduce((n, l) => n + l.count, 0)}`];
}

// Whether it fits, and the longest text: what memory holds, or what it was trained on if that is less.
function longestCell(model, answer, memory) {
  const beyond = model.trained && answer.length > model.trained;
  const limit = model.trained ? `trained on ${tokens(model.trained)} tokens` : "";
  if (memory === null) return element("td", { class: beyond ? "bad" : null }, beyond ? "beyond its training" : "–", limit && element("small", {}, limit));
  const fits = answer.total <= memory;
  const room = answer.longest === null ? Infinity : answer.longest;
  const held = room === Infinity ? "any length" : room ? `up to ${whole(room)} tokens` : answer.weight_bytes > memory ? "its weights do not" : "not one token";
  const trained = model.trained && room > model.trained;
  return element(
    "td",
    {},
    element("span", { class: fits && !beyond ? "good" : "bad" }, fits ? (beyond ? "fits, untrained" : "fits") : "does not fit"),
    element("small", {}, trained ? `up to ${whole(model.trained)} tokens, its trained length` : held),
    trained && element("small", {}, room === Infinity ? "memory for any length" : `memory for ${whole(room)}`),
  );
}

function resultRow(held, answer, memory) {
  if (answer.error) {
    return element("tr", {}, nameCell(held), element("td", { colspan: 7, class: "refused" }, answer.error));
  }
  const [every, each] = perToken(answer);
  return element(
    "tr",
    {},
    nameCell(held),
    element("td", {}, perLayer(answer)),
    element("td", { title: exact(answer.per_token) }, every, element("small", {}, each)),
    sizeCell(answer.state, { strong: true }),
    element("td", { title: exact(answer.weight_bytes) }, bytes(answer.weight_bytes), element("small", {}, scaled(answer.weights.total)), answer.weights.resting > 0 && element("small", {}, `${scaled(answer.weights.active)} active`)),
    sizeCell(answer.activations),
    sizeCell(answer.total),
    longestCell(held.model, answer, memory),
  );
}

function resultTable(models, answers, memory) {
  const [counted, estimated] = ["counted", "estimated"];
  const heads = [["Model"], ["One layer", counted], ["Each token", counted], ["KV cache", counted], ["Weights", counted], ["Activations", estimated], ["Together"], ["Memory"]];
  return element(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Bytes of each model" },
    element(
      "table",
      { id: "calculator-table" },
      element("thead", {}, element("tr", {}, heads.map(([name, basis]) => element("th", { scope: "col" }, name, basis && element("small", {}, basis))))),
      element("tbody", {}, models.map((held, at) => resultRow(held, answers[at], memory))),
    ),
  );
}

// The KV cache as this library and other programs allocate it.
function engineTable(models, answers) {
  const engines = Object.entries(configTable().engines);
  const column = (name, about, version) => element("th", { scope: "col", title: about }, name, version && element("small", {}, version));
  const size = (value) => (value === null ? element("td", { title: "it does not run this attention, or not in these bits" }, "–") : sizeCell(value));
  return [
    element(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "KV cache by program" },
      element(
        "table",
        { id: "engine-table" },
        element("thead", {}, element("tr", {}, column("Model"), column("suffice"), engines.map(([name, { version, source }]) => column(name, source, version)))),
        element("tbody", {}, models.map((held, at) => {
          const { error, state, engines: sizes } = answers[at];
          return element("tr", {}, nameCell(held), [state, ...engines.map(([name]) => sizes?.[name])].map((one) => size(error ? null : one)));
        })),
      ),
    ),
    element("p", { class: "hint" }, `Counted from their sources, with their defaults. ${engines.map(([name, { settings }]) => `${name}: ${settings}.`).join(" ")}`),
  ];
}

const MEMORY_PARTS = [
  ["weights", (answer) => answer.weight_bytes],
  ["KV cache", (answer) => answer.state],
  ["activations", (answer) => answer.activations],
];
const partClass = (name) => (name === "KV cache" ? "state" : name);

function resultRows(models, answers) {
  const head = ["model", "tokens", "one layer, B", "each token, B", "KV cache, B", ...Object.keys(configTable().engines).map((name) => `${name}, B`), "weights, B", "parameters", "active parameters", "activations, B", "together, B", "longest text that fits", "trained length"];
  const rows = models.map(({ model }, at) => {
    const a = answers[at];
    if (a.error) return [model.name, a.error];
    return [model.name, a.length, a.layers.map((layer) => layer.state).join(" / "), a.per_token, a.state, ...Object.values(a.engines).map((size) => size ?? ""), a.weight_bytes, a.weights.total, a.weights.active, a.activations, a.total, a.longest === null ? "" : a.longest, model.trained || ""];
  });
  return [head, ...rows];
}

// One bar for each model, its parts beside each other, and the memory there is as a line.
function memoryBars(models, answers, memory) {
  const found = answers.map((answer, at) => [models[at], answer]).filter(([, a]) => !a.error);
  if (!found.length) return [];
  const most = Math.max(memory || 0, ...found.map(([, a]) => a.total));
  const width = chartWidth();
  const [left, right, pitch, top] = [width < 520 ? 12 : 150, 84, width < 520 ? 50 : 36, 26];
  const height = top + pitch * found.length + 8;
  const x = (size) => left + (size / most) * (width - left - right);
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart bars", role: "img",
    "aria-label": `What fits: ${found.map(([held, a]) => `${held.model.name} ${bytes(a.total)}`).join(", ")}` });
  if (memory) {
    svg.append(drawing("line", { x1: x(memory), x2: x(memory), y1: top - 6, y2: height - 4, class: "limit" }));
    const end = memory > most / 2 ? "end" : "";
    svg.append(drawing("text", { x: x(memory) + (end ? 4 : 0), y: 13, class: `limit-name ${end}` }, `your ${bytes(memory)}`));
  }
  found.forEach(([held, answer], row) => {
    const y = top + pitch * row + (width < 520 ? 20 : 6);
    const name = { class: width < 520 ? "row-name" : "row-name end", x: left - (width < 520 ? 0 : 10), y: width < 520 ? y - 5 : y + 14 };
    svg.append(drawing("text", name, held.model.name));
    let at = 0;
    for (const [part, size] of MEMORY_PARTS) {
      const rect = { x: x(at), y, width: Math.max(0, x(at + size(answer)) - x(at)), height: 20, class: `part-${partClass(part)}` };
      svg.append(drawing("rect", rect, drawing("title", {}, `${held.model.name}: ${part} ${bytes(size(answer))}`)));
      at += size(answer);
    }
    const over = memory && answer.total > memory;
    const [end, line] = [x(answer.total), memory ? x(memory) : -1];
    const meets = line >= end && line < end + 66; // the line would cross the words: beside it, then
    svg.append(drawing("text", { class: over ? "total over" : "total", x: meets ? line + 7 : end + 7, y: y + 14 }, bytes(answer.total)));
  });
  return [
    svg,
    element("ul", { class: "legend" }, MEMORY_PARTS.map(([name]) => element("li", {}, element("span", { class: `block key-${partClass(name)}`, "aria-hidden": "true" }), element("span", {}, name)))),
    saveTools("what-fits", { svg: () => svg, rows: () => resultRows(models, answers), label: "what fits", picture: "fits" }),
  ];
}

function curves(models, answers, length, memory) {
  const lengths = FACTS.calculator.lengths;
  const lines = answers
    .map((answer, at) => ({ answer, held: models[at] }))
    .filter(({ answer }) => !answer.error)
    .map(({ answer, held }) => ({
      name: held.model.name,
      number: held.number,
      points: lengths.map((one, at) => [one, answer.curve[at]]),
      ends: answer.trained_state === null ? [] : [[held.model.trained, answer.trained_state]],
    }));
  const inside = length >= lengths[0] && length <= lengths.at(-1);
  const marks = [
    ...(inside ? [{ x: length }] : []),
    ...(memory ? [{ y: memory, label: `your ${bytes(memory)}` }] : []),
  ];
  const chart = lineChart({
    lines,
    marks,
    title: `KV cache over length: ${lines.map((line) => line.name).join(", ")}`,
    xName: "tokens",
    yName: "KV cache",
    xFormat: tokens,
    yFormat: bytes,
    xLog: true,
    yLog: true,
  });
  const rows = () => [["tokens", ...lines.map((line) => `${line.name}, B`)], ...lengths.map((one, at) => [one, ...lines.map((line) => line.points[at][1])])];
  const trained = lines.some(({ ends }) => ends.length);
  return [chart, legend(lines), trained && element("p", { class: "hint" }, "A ring is the length that a model was trained on."), saveTools("kv-cache", { svg: () => chart, rows, label: "the KV cache over length", picture: "cache" })];
}
