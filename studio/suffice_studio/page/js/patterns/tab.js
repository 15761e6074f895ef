// The tab of patterns: what to draw at the left, the attention pattern at the right.

const OWN = "a pattern of my own";
const PATTERN = { mechanism: "longformer", length: 64, causal: false, heads: 4, kv: 4, code: "", panel: 0 };

const PIECES = ["Window(size=8)", "Dilated(size=4, dilation=4)", "Global(tokens=1)", "Strided(stride=8)",
  "Fixed(stride=8)", "Random", "Block(size=8)"];

const sketchKey = () => `${PATTERN.length}${PATTERN.causal ? " causal" : ""}`;

// Only a random pattern that knows its length may look ahead.
const pieceOf = (piece) =>
  piece !== "Random" ? piece : PATTERN.causal ? "Random(keys=3)" : `Random(keys=3, length=${PATTERN.length})`;

function readPatternState() {
  const { mechanism, length, causal, heads, kv, code } = PATTERN;
  const layer = isPlainLayer(mechanism) ? { heads, kv } : {};
  return { mechanism, length, causal, ...layer, ...(mechanism === OWN && { code }) };
}

function writePatternState(data) {
  const given = known({ mechanism: "", length: 0, causal: false, heads: 0, kv: 0, code: "" }, data);
  if (given.mechanism !== OWN && !FACTS.patterns.mechanisms[given.mechanism]) delete given.mechanism;
  if (!FACTS.patterns.lengths.includes(given.length)) delete given.length;
  if (!QUERY_HEADS.includes(given.heads)) delete given.heads;
  Object.assign(PATTERN, given);
  if (!kvChoices(PATTERN.heads).includes(PATTERN.kv)) PATTERN.kv = PATTERN.heads;
  if (given.kv && SHARING.includes(PATTERN.mechanism)) PATTERN.mechanism = sharingOf(PATTERN);
  PATTERN.kv = kvOf(PATTERN.mechanism, PATTERN.heads, PATTERN.kv);
}

function sketchOf(mechanism) {
  const { sketches } = FACTS.patterns.mechanisms[mechanism];
  return sketches[sketchKey()] || null;
}

function buildPatterns(panel) {
  sharedState("patterns", readPatternState, writePatternState);
  const wrong = notice("pattern-error");
  const shown = element("div", { class: "shown-pattern" });
  const flow = element("div", { id: "pattern-flow" });
  const title = element("h2", {});
  const costs = element("dl", { class: "counts costs", id: "layer-costs" });
  const refuse = (error) => {
    tell(wrong, error);
    stale(shown, error);
  };
  const code = element("textarea", { id: "pattern-code", rows: "3", spellcheck: false, autocapitalize: "off" });
  const about = element("div", { class: "about" });
  const legendBox = element("ul", { class: "parts", id: "pattern-parts" });
  const counts = element("dl", { class: "counts", id: "pattern-counts" });
  const hover = element("p", { class: "hover", id: "pattern-hover", "aria-live": "polite" });
  const heads = element("div", { class: "heads" });
  const pythonTitle = element("h3", {}, "Python that makes it");
  const python = element("pre", { id: "pattern-python", tabindex: 0 });
  const reach = reachView();
  const canvas = element("canvas", { id: "pattern-canvas", tabindex: 0, role: "img" });
  let drawn = null;
  let drawnKey = "";
  let query = PATTERN.length - 1;
  let layer = null; // its heads, where sliders set them
  let near = null; // its window, chunk and sinks, where it has nothing else

  const view = new PatternCanvas(canvas, (pair, chosen) => {
    hover.textContent = pairText(drawn, pair);
    if (chosen && pair) {
      query = pair.i;
      reach.show(drawn, query);
    }
  });
  const showPanel = (at) => {
    PATTERN.panel = at;
    view.show(drawn, at);
    replace(counts, countItems(drawn, at));
    replace(legendBox, partItems(drawn, at));
    canvas.setAttribute("aria-label", `${drawn.expression}: ${panelCounts(drawn, drawn.panels[at])}`);
  };
  // Draws the pattern unless it is drawn already, and returns whether it can be.
  const draw = (request) => {
    const key = JSON.stringify(request);
    if (key === drawnKey) {
      refuse(null);
      return true;
    }
    try {
      drawn = patternDrawing(request);
    } catch (error) {
      refuse(error);
      return false;
    }
    refuse(null);
    drawnKey = key;
    query = drawn.queries - 1;
    const options = Object.fromEntries(drawn.panels.map((one, n) => [n, `heads ${one.heads.join(", ")}`]));
    replace(heads, drawn.panels.length > 1 && segments("Heads", options, 0, (at) => showPanel(Number(at))));
    showPanel(0);
    reach.show(drawn, query);
    hover.textContent = pairText(drawn, null);
    return true;
  };
  const ownLine = () => {
    if (PATTERN.mechanism === OWN) return null;
    const line = sketchOf(PATTERN.mechanism).line.replace(/, 4(?=[,)])/, `, ${layer ? layer.heads : 4}`);
    return PATTERN.mechanism === "gqa" ? line.replace(/\)$/, `, num_kv_heads=${PATTERN.kv})`) : line;
  };
  const showLayer = () => {
    const own = PATTERN.mechanism === OWN;
    const pattern = readPattern(code.value);
    layer = isPlainLayer(PATTERN.mechanism) && headsOf(pattern) === null ? { heads: PATTERN.heads, kv: PATTERN.kv } : null;
    near = layer && reachOf(pattern);
    flowBox.hidden = own && !layer;
    sliders.node.hidden = costs.hidden = !layer;
    title.textContent = own && layer ? layerTitle(layer, near) : own ? OWN : titleOf(PATTERN.mechanism);
    if (layer) {
      sliders.show(layer, near, PATTERN.length);
      replace(costs, costItems(layerCosts(layer, near, drawn)));
    }
    replace(flow, !flowBox.hidden && flowView(drawFlow(layer, pattern), title.textContent));
    python.textContent = patternPython(drawn, ownLine(), layer);
  };
  const refresh = () => {
    const own = PATTERN.mechanism === OWN;
    const sketch = own ? null : sketchOf(PATTERN.mechanism);
    if (!own && !sketch) {
      const never = PATTERN.causal ? "cannot be causal" : "is causal always";
      refuse(new Error(`${PATTERN.mechanism} ${never}; change "causal", or draw another.`));
      return;
    }
    if (sketch) code.value = sketch.expression;
    PATTERN.code = code.value;
    replace(about, aboutMechanism(sketch));
    const keys = sketch && sketch.keys !== PATTERN.length ? sketch.keys : null;
    if (!draw({ expression: code.value, queries: PATTERN.length, keys })) return;
    if (own) causal.querySelector("input").checked = PATTERN.causal = drawn.causal;
    showLayer();
    announce(`${title.textContent}: ${panelCounts(drawn, drawn.panels[PATTERN.panel])}`);
    remember("patterns");
  };
  // Of a plain pattern the flow is all that differs, so it comes first. A slider that is moved stays.
  const arrange = () => {
    const plain = PATTERN.mechanism === OWN ? near : near && Math.min(near.window, near.chunk) === ALL;
    if (plain || /^(Full|Causal)\(\)$/.test(code.value)) shown.prepend(flowBox);
    else pythonTitle.before(flowBox);
  };
  const sliders = layerSliders((change) => {
    const width = change.heads || PATTERN.heads;
    PATTERN.kv = change.kv || kvOf(sharingOf(PATTERN), width, Math.min(PATTERN.kv, width));
    PATTERN.heads = width;
    if ("window" in change) near = { ...near, chunk: ALL, ...change };
    else if ("chunk" in change) near = { ...near, window: ALL, ...change };
    else if ("sinks" in change) near = { ...near, ...change };
    const plain = near && Math.min(near.window, near.chunk) === ALL;
    if (near && !change.heads && !change.kv) code.value = reachCode(near, PATTERN.causal);
    PATTERN.mechanism = choose.value = plain ? sharingOf(PATTERN) : OWN;
    refresh();
  });
  const flowBox = partOf("flow", element("div", { class: "flow-box" }, title, sliders.node, costs, flow));
  const edited = later(() => {
    PATTERN.mechanism = OWN;
    choose.value = OWN;
    refresh();
  }, 40); // ms: less than the pause between two keys
  code.addEventListener("input", edited);
  const choose = mechanismSelect((name) => {
    PATTERN.mechanism = name;
    PATTERN.kv = kvOf(name, PATTERN.heads, PATTERN.kv);
    if (name === "gqa" && PATTERN.heads === 1) PATTERN.mechanism = choose.value = "standard"; // nothing to share
    if (name !== OWN && !sketchOf(name)) {
      PATTERN.causal = !PATTERN.causal; // it has this form alone
      causal.querySelector("input").checked = PATTERN.causal;
    }
    refresh();
    arrange();
  });
  const causal = switchField("Causal: no query sees a later key", PATTERN.causal, (on) => {
    PATTERN.causal = on;
    if (PATTERN.mechanism === OWN) code.value = withCausal(code.value, on);
    refresh();
  }, { id: "pattern-causal" });
  const lengths = Object.fromEntries(FACTS.patterns.lengths.map((n) => [n, String(n)]));
  const addPiece = (piece) => {
    code.value = withPiece(code.value, pieceOf(piece));
    edited();
  };

  panel.append(
    element(
      "div",
      { class: "columns" },
      element(
        "aside",
        { "aria-label": "Pattern" },
        element("h2", {}, "Pattern"),
        labelled("Mechanism", choose),
        segments("Tokens", lengths, PATTERN.length, (n) => {
          PATTERN.length = Number(n);
          refresh();
        }),
        causal,
        labelled("As code", code, "& = both, | = either; edit it to draw a pattern of your own"),
        element("div", { class: "pieces", role: "group", "aria-label": "Add a piece" }, PIECES.map((piece) =>
          element("button", { type: "button", class: "chip", title: `Add | ${piece}`, "data-piece": piece, on: { click: () => addPiece(piece) } }, `+ ${piece.split("(")[0]}`))),
        about,
      ),
      element(
        "div",
        { class: "main" },
        wrong,
        replace(shown, partOf("pattern", element("div", {}, element("h2", {}, "Attention pattern"), heads, element("div", { class: "drawing" },
          element("div", { class: "stage" }, canvas,
            element("div", { class: "under" }, element("p", { class: "hint" }, matchMedia("(pointer: coarse)").matches ? "Drag to move, + and − to zoom; tap a pair for its query's receptive field." : "Drag to move, Ctrl + wheel or + and − to zoom; click a pair for its query's receptive field."), zoomButtons(view))),
          element("div", { class: "facts" }, hover, counts, legendBox, saveButtons(() => drawn), reach.node)))),
        flowBox,
        pythonTitle,
        element("div", { class: "code" }, python, copyButton(() => python.textContent))),
      ),
    ),
  );
  if (PATTERN.mechanism === OWN && PATTERN.code) code.value = PATTERN.code;
  refresh();
  arrange();
}

function mechanismSelect(change) {
  const names = [...Object.keys(FACTS.patterns.mechanisms), OWN];
  const select = element(
    "select",
    { id: "pattern-mechanism", on: { change: () => change(select.value) } },
    names.map((name) => element("option", { value: name }, name === OWN ? name : titleOf(name))),
  );
  select.value = PATTERN.mechanism;
  return select;
}

function withCausal(code, on) {
  const bare = code.trim().replace(/\s*&\s*Causal\(\)$/, "");
  if (!on) return bare.replace(/^\((.*)\)$/, (whole_, inner) => (/^[^()]*(\([^()]*\)[^()]*)*$/.test(inner) ? inner : whole_));
  if (bare === "Full()" || bare === "Causal()") return "Causal()";
  return bare.includes("|") ? `(${bare}) & Causal()` : `${bare} & Causal()`;
}

function withPiece(code, piece) {
  const causal = /&\s*Causal\(\)$/.test(code.trim()) || code.trim() === "Causal()";
  const bare = withCausal(code, false);
  const joined = bare && bare !== "Full()" && bare !== "Causal()" ? `${bare} | ${piece}` : piece;
  return causal ? withCausal(joined, true) : joined;
}

function pairText(drawn, pointed) {
  if (!pointed) return "Point at a pair, or move with the arrow keys.";
  const { i, k, number } = pointed;
  const query = i + drawn.keys - drawn.queries;
  const pair = `Query ${Math.max(query, i)}, key ${k}: `;
  if (number) return `${pair}seen, by ${drawn.parts[number - 1].name}.`;
  return drawn.causal && k > query ? `${pair}hidden, the key comes later.` : `${pair}hidden, no part allows it.`;
}

const FEWEST_BLOCKS = 4; // below, whether a block is computed says nothing

function countItems(drawn, at) {
  const panel = drawn.panels[at];
  const all = drawn.queries * drawn.keys;
  const items = {
    "visible pairs": [whole(panel.visible), percent(panel.visible / all)],
    "computed pairs": panel.computed ? [whole(panel.computed), `in blocks of 64 × 64`] : ["none", "sums"],
  };
  if (all > FEWEST_BLOCKS * 4096 && panel.computed) {
    items["computed blocks"] = [whole(Math.ceil(panel.computed / 4096)), `of ${whole(Math.ceil(all / 4096))}`];
    items["computed per visible"] = [panel.visible ? `${(panel.computed / panel.visible).toFixed(2)}×` : "–", "1 is the least"];
  }
  return Object.entries(items).map(([name, [value, more]]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value, element("small", {}, more))));
}

function partItems(drawn, at) {
  const pairs = drawn.parts.map(() => 0);
  for (const runs of drawn.panels[at].rows) {
    for (let n = 0; n < runs.length; n += 2) if (runs[n]) pairs[runs[n] - 1] += runs[n + 1];
  }
  return drawn.parts.map((part, n) => {
    const key = drawing("svg", { viewBox: "0 0 14 14", class: "tile", "aria-hidden": "true" },
      drawing("rect", { width: 14, height: 14, rx: 2, fill: part.colour }));
    return element("li", {}, key, element("code", {}, part.name), element("small", {}, `${whole(pairs[n])} pairs`));
  });
}

function aboutMechanism(sketch) {
  if (!sketch) return [];
  const { summary } = FACTS.patterns.mechanisms[PATTERN.mechanism];
  return [element("p", {}, summary), sketch.notes.map((note) => element("p", { class: "hint" }, note))];
}

function zoomButtons(view) {
  const button = (label, name, act) =>
    element("button", { type: "button", class: "quiet", "aria-label": name, title: name, on: { click: act } }, label);
  return element("div", { class: "zoom", role: "group", "aria-label": "Zoom" },
    button("+", "Zoom in", () => view.zoom(1.5)),
    button("−", "Zoom out", () => view.zoom(1 / 1.5)),
    button("⤢", "Whole pattern", () => view.home()));
}

function saveButtons(drawn) {
  const own = () => PATTERN.mechanism === OWN;
  const title = () => (own() ? drawn().expression : `${titleOf(PATTERN.mechanism)}: ${drawn().expression}`);
  const rows = () => [["query", "key", "allowed by"], ...pairsOf(drawn())];
  return saveTools(() => (own() ? "pattern" : PATTERN.mechanism), { svg: () => patternSvg(drawn(), title()), rows, label: "the pattern", picture: "pattern" });
}

// Every visible pair of the first panel's heads.
function pairsOf(drawn) {
  return drawn.panels[PATTERN.panel].rows.flatMap((runs, i) => {
    const pairs = [];
    let k = 0;
    for (let n = 0; n < runs.length; n += 2) {
      for (let end = k + runs[n + 1]; k < end; k += 1) if (runs[n]) pairs.push([i + drawn.keys - drawn.queries, k, drawn.parts[runs[n] - 1].name]);
    }
    return pairs;
  });
}

const titleOf = (mechanism) => FACTS.patterns.mechanisms[mechanism].title;

// Strips of positions that a query has heard of after each layer.
function reachView() {
  const strips = element("div", { class: "strips", id: "pattern-reach" });
  const heading = element("h3", {}, "Receptive field");
  const node = element("div", { class: "reach" }, heading, strips);
  const show = (drawn, query) => {
    if (drawn.queries !== drawn.keys) {
      replace(strips, element("p", { class: "hint" }, "Keys are sums here: after one layer, every token can influence every other."));
      return;
    }
    const layers = receptive(drawn, query, 6);
    heading.textContent = `Receptive field of query ${query}`;
    replace(strips, layers.map((seen, n) => {
      const reached = seen.reduce((sum, one) => sum + one, 0);
      const strip = drawing("svg", { viewBox: `0 0 ${drawn.keys} 10`, preserveAspectRatio: "none", "aria-hidden": "true" });
      let start = -1;
      for (let j = 0; j <= drawn.keys; j += 1) {
        if (seen[j] && start < 0) start = j;
        if (!seen[j] && start >= 0) {
          strip.append(drawing("rect", { x: start, y: 0, width: j - start, height: 10, class: "heard" }));
          start = -1;
        }
      }
      const last = n === layers.length - 1 && layers.length < 6 ? ", then no more" : "";
      return element("div", {}, element("span", {}, `${n + 1} layer${n ? "s" : ""}`), strip, element("span", {}, `${whole(reached)} tokens${last}`));
    }));
  };
  return { node, show };
}

tab("patterns", "Patterns", buildPatterns);
