// The drawing of a layer's data flow, with the heads and the pattern that are set.

const LONGEST_NOTE = 26; // letters that the box of the weights has room for

// One flow of a mechanism is whole; of its other form only the part that differs is there.
function flowText(mechanism) {
  const { flows } = FACTS.patterns.mechanisms[mechanism];
  const forms = Object.values(flows);
  const form = flows[PATTERN.causal ? " causal" : ""] ?? forms[0];
  if (typeof form === "string") return form;
  return forms[0].slice(0, form.start) + form.part + forms[0].slice(form.end);
}

const parsedFlows = new Map(); // by text: a slider asks in every frame

function flowSvg(mechanism) {
  const text = flowText(mechanism);
  if (!parsedFlows.has(text)) parsedFlows.set(text, document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true));
  return parsedFlows.get(text).cloneNode(true);
}

const flowSteps = (mechanism) => [...flowSvg(mechanism).querySelectorAll(".word")].map((word) => word.textContent).join(" ");

// Whether a mechanism is a softmax over plain projections, so that it is its heads and its pattern.
const isPlainLayer = (mechanism) => mechanism === OWN || flowSteps(mechanism) === flowSteps("standard");

// [number, left, width] of the heads in a lane.
function stripes(count, left, width) {
  const gap = count > 8 ? 2 : 4;
  const each = (width - gap * (count - 1)) / count;
  return Array.from({ length: count }, (_, n) => [n, left + n * (each + gap), each]);
}

// Draws the heads anew: queries in the colour of the keys that they read.
function setHeads(svg, { heads, kv }) {
  const drawn = [...svg.querySelectorAll(".head")];
  const lines = [...svg.querySelectorAll(".reads")];
  const number = (node, name) => Number(node.getAttribute(name));
  const lanes = [...new Set(drawn.map((head) => number(head, "y")))];
  const left = Math.min(...drawn.map((head) => number(head, "x")));
  const width = Math.max(...drawn.map((head) => number(head, "x") + number(head, "width"))) - left;
  const [top, bottom] = [number(lines[0], "y1"), number(lines[0], "y2")];
  [...drawn, ...lines].forEach((node) => node.remove());
  const middles = stripes(kv, left, width).map(([, x, each]) => x + each / 2);
  lanes.forEach((y, lane) => {
    for (const [n, x, each] of stripes(lane ? kv : heads, left, width)) {
      const group = lane ? n : Math.floor((n * kv) / heads);
      svg.append(drawing("rect", { class: `head head-${(group % SERIES) + 1}`, x, y, width: each, height: 26, rx: 2 }));
      if (!lane) svg.append(drawing("line", { class: "reads", x1: x + each / 2, y1: top, x2: middles[group], y2: bottom }));
    }
  });
  for (const note of svg.querySelectorAll(".note")) {
    note.textContent = note.textContent.replace(/^\d+ (query|key|value) heads?$/, (_, lane) => {
      const count = lane === "query" ? heads : kv;
      return `${count} ${lane} head${count === 1 ? "" : "s"}`;
    });
  }
  for (const box of svg.querySelectorAll(".map")) {
    if (/^W[KV]$/.test(box.querySelector(".word").textContent)) box.querySelector(".note").textContent = `${LAYER_WIDTH} × ${(LAYER_WIDTH / heads) * kv}`;
  }
}

// A pattern by the names of its kinds.
function briefPattern(pattern) {
  if (isJoined(pattern)) {
    const names = flatParts(pattern).map((part) => (isJoined(part) ? `(${briefPattern(part)})` : briefPattern(part)));
    return [...new Set(names)].join(pattern.kind === "And" ? " & " : " | ");
  }
  const { kind, fields } = pattern;
  return kind === "Block" && written(fields.over) !== "Window(size=1)" ? `Block(${briefPattern(fields.over)})` : kind;
}

// What the layer computes, from x to y. layer: its heads if they are set, null for the mechanism's own.
function drawFlow(layer, pattern) {
  const own = PATTERN.mechanism === OWN;
  const svg = flowSvg(own ? "standard" : PATTERN.mechanism);
  if (layer) setHeads(svg, layer);
  const name = briefPattern(pattern);
  if (own) svg.querySelector(".core .note").textContent = name.length > LONGEST_NOTE ? OWN : name;
  return svg;
}

function flowView(svg, title) {
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Data flow of ${title}`);
  const keys = [...new Set([...svg.querySelectorAll("g")].map((box) => box.getAttribute("class")))];
  const name = PATTERN.mechanism === OWN ? "layer" : PATTERN.mechanism;
  return [
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `What ${title} computes` }, svg),
    element("ul", { class: "legend" }, keys.map((kind) => element("li", {}, element("span", { class: `block flow-${kind}`, "aria-hidden": "true" }), element("span", {}, FACTS.patterns.flows[kind])))),
    saveTools(`${name}-flow`, { svg: () => svg, label: "the data flow", picture: "flow" }),
  ];
}
