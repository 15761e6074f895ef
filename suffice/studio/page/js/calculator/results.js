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

function longestCell(answer, memory) {
  if (memory === null) return element("td", {}, "–");
  const fits = answer.total <= memory;
  return element(
    "td",
    {},
    element("span", { class: fits ? "good" : "bad" }, fits ? "fits" : "does not fit"),
    element("small", {}, answer.longest ? `up to ${whole(answer.longest)} tokens` : answer.longest === null ? "at any length" : answer.weight_bytes > memory ? "its weights do not" : "not one token"),
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
    element("td", { title: exact(answer.weight_bytes) }, bytes(answer.weight_bytes), element("small", {}, scaled(answer.weights.total))),
    sizeCell(answer.activations),
    sizeCell(answer.total),
    longestCell(answer, memory),
  );
}

function resultTable(models, answers, memory) {
  const heads = ["Model", "One layer", "Each token", "State", "Weights", "Activations", "Together", "Memory"];
  return element(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Bytes of each model" },
    element(
      "table",
      { id: "calculator-table" },
      element("thead", {}, element("tr", {}, heads.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, models.map((held, at) => resultRow(held, answers[at], memory))),
    ),
  );
}

function memoryBars(models, answers, memory) {
  const known = answers.map((answer, at) => [models[at], answer]).filter(([, a]) => !a.error);
  const most = Math.max(memory || 0, ...known.map(([, a]) => a.total)) * 1.02;
  const rows = known.map(([held, answer]) => {
    const parts = [
      ["weights", answer.weight_bytes],
      ["state", answer.state],
      ["activations", answer.activations],
    ];
    const svg = drawing("svg", {
      viewBox: "0 0 1000 20",
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": parts.map(([name, size]) => `${name} ${bytes(size)}`).join(", "),
    });
    let x = 0;
    for (const [name, size] of parts) {
      const width = (1000 * size) / most;
      svg.append(drawing("rect", { x, y: 0, width, height: 20, class: `part-${name}` }));
      x += width;
    }
    if (memory) {
      const at = (1000 * memory) / most;
      svg.append(drawing("rect", { x: at - 1.5, y: 0, width: 3, height: 20, class: "memory" }));
    }
    return element(
      "li",
      {},
      element("span", {}, held.model.name),
      svg,
      element("span", { class: memory && answer.total > memory ? "bad" : null }, bytes(answer.total)),
    );
  });
  return element("ul", { class: "bars" }, rows);
}

function barKeys(memory) {
  const names = ["weights", "state", "activations", ...(memory ? ["memory"] : [])];
  return element(
    "ul",
    { class: "legend" },
    names.map((name) =>
      element(
        "li",
        {},
        element("span", { class: `block key-${name}`, "aria-hidden": "true" }),
        element("span", {}, name === "memory" ? `your ${CALCULATOR.memory.trim()}` : name),
      ),
    ),
  );
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
    }));
  const inside = length >= lengths[0] && length <= lengths.at(-1);
  const marks = [
    ...(inside ? [{ x: length }] : []),
    ...(memory ? [{ y: memory, label: `your ${CALCULATOR.memory.trim()}` }] : []),
  ];
  return [
    lineChart({
      lines,
      marks,
      title: `State over length: ${lines.map((line) => line.name).join(", ")}`,
      xName: "tokens",
      yName: "state",
      xFormat: tokens,
      yFormat: bytes,
      xLog: true,
      yLog: true,
    }),
    legend(lines),
  ];
}
