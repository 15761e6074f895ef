// The layer that is drawn: heads, window, chunk and sinks as sliders, and what they cost.

const LAYER_WIDTH = 64; // d_model
const QUERY_HEADS = [1, 2, 4, 8, 16];
const MOST_SINKS = 16;
const ALL = Infinity; // a window or a chunk that is not limited

// Key/value heads that a number of query heads can share, from multi-head to multi-query.
const kvChoices = (heads) => QUERY_HEADS.filter((kv) => kv <= heads).reverse();

const SHARING = ["standard", "gqa", "mqa"];
const sharingOf = ({ heads, kv }) => (kv === heads ? "standard" : kv === 1 ? "mqa" : "gqa");

// The key/value heads that a mechanism has, of those that it may have.
function kvOf(mechanism, heads, kv) {
  if (mechanism === OWN || sharingOf({ heads, kv }) === mechanism) return kv;
  return { gqa: Math.max(1, heads / 2), mqa: 1 }[mechanism] || heads;
}

// Window, chunk and sinks of a pattern that has nothing else; null for any other.
function reachOf(pattern) {
  const parts = pattern.kind === "And" ? flatParts(pattern).filter(({ kind }) => kind !== "Causal") : [pattern];
  const [near, hubs, ...more] = parts.length === 1 && parts[0].kind === "Or" ? flatParts(parts[0]) : parts;
  if (more.length || (hubs && hubs.kind !== "Global")) return null;
  const sinks = hubs ? hubs.fields.tokens : 0;
  const none = { window: ALL, chunk: ALL, sinks };
  if (near.kind === "Window") return { ...none, window: near.fields.size };
  if (near.kind === "Block" && written(near.fields.over) === "Window(size=1)") return { ...none, chunk: near.fields.size };
  return (near.kind === "Full" || near.kind === "Causal") && !hubs ? none : null;
}

function reachCode({ window, chunk, sinks }, causal) {
  const near = chunk < ALL ? `Block(size=${chunk})` : window < ALL ? `Window(size=${window})` : "Full()";
  const code = sinks && near !== "Full()" ? `${near} | Global(tokens=${sinks})` : near;
  return causal ? withCausal(code, true) : code;
}

function layerTitle(layer, reach) {
  const words = [titleOf(sharingOf(layer))];
  if (!reach) words.push(OWN);
  else if (reach.chunk < ALL) words.push(`chunks of ${reach.chunk}`);
  else if (reach.window < ALL) words.push(`window of ${reach.window}`);
  if (reach && reach.sinks) words.push(`${reach.sinks} sink${reach.sinks > 1 ? "s" : ""}`);
  return words.join(", ");
}

// What a layer costs and what multi-head attention over the same tokens does: [[name, [own, its]], ...].
function layerCosts({ heads, kv }, reach, { causal, queries, panels }) {
  const plain = { ...FACTS.calculator.empty, d_model: LAYER_WIDTH, layers: 1, num_heads: heads, bias: true };
  const window = reach ? Math.min(reach.window, reach.chunk) : ALL;
  const own = { ...plain, num_kv_heads: kv, ...(window < ALL && { window, sinks: reach.sinks }) };
  const [mine, its] = calculate({ models: [own, plain], length: queries, memory: null });
  const pairs = causal ? (queries * (queries + 1)) / 2 : queries * queries;
  return {
    cache: causal ? [mine.state, its.state] : null,
    token: causal ? [mine.per_token, its.per_token] : null,
    flops: [attentionFlops(own, queries, panels[0].visible), attentionFlops(plain, queries, pairs)],
    parameters: [mine.weights.attention, its.weights.attention],
  };
}

function costItems(costs) {
  const item = (name, numbers, format, unit) => {
    if (!numbers) return element("div", {}, element("dt", {}, name), element("dd", {}, "none", element("small", {}, "it reads all tokens at once")));
    const share = numbers[0] / numbers[1];
    const bar = drawing("svg", { class: "share", viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" },
      drawing("rect", { width: Math.min(100, 100 * share), height: 4 }));
    return element("div", {}, element("dt", {}, name), element("dd", { title: `${whole(numbers[0])} ${unit}` }, format(numbers[0]), bar, element("small", {}, share ? `${percent(share)} of multi-head` : "nothing grows")));
  };
  return [
    item("KV cache", costs.cache, bytes, "B"),
    item("each further token", costs.token, bytes, "B"),
    item("FLOPs, visible pairs", costs.flops, scaled, "FLOPs"),
    item("parameters", costs.parameters, scaled, "parameters"),
  ];
}

/* Sliders of a layer: moved({heads}), moved({kv}), ... is called at most once a frame. show() sets
   them to a layer and a reach, which is null where the pattern is none of a window, a chunk and sinks. */
function layerSliders(moved) {
  const slider = (name, label) => {
    const input = element("input", { type: "range", id: `layer-${name}`, min: "0", step: "1" });
    const words = element("output", { class: "shown", for: input.id });
    let choices = [];
    const change = eachFrame(() => moved({ [name]: choices[input.value] }));
    input.addEventListener("input", change);
    const node = element("div", { class: "field" }, element("label", { for: input.id }, `${label} `, words), input);
    const set = (values, value, say) => {
      choices = values;
      input.max = String(values.length - 1);
      input.value = String(values.indexOf(value));
      input.disabled = values.length < 2;
      words.textContent = say;
      input.setAttribute("aria-valuetext", say);
    };
    return { node, set };
  };
  const [heads, kv] = [slider("heads", "Query heads"), slider("kv", "KV heads")];
  const [window, chunk, sinks] = [slider("window", "Window"), slider("chunk", "Chunk"), slider("sinks", "Sinks")];
  kv.node.append(element("p", { class: "ends", "aria-hidden": "true" }, ["MHA", "GQA", "MQA"].map((name) => element("span", {}, name))));
  const reaches = element("div", { class: "sliders" }, window.node, chunk.node, sinks.node);
  const node = element("div", {}, element("div", { class: "sliders" }, heads.node, kv.node), reaches);
  const show = (layer, reach, length) => {
    heads.set(QUERY_HEADS, layer.heads, String(layer.heads));
    kv.set(kvChoices(layer.heads), layer.kv, `${layer.kv}, ${{ standard: "MHA", gqa: "GQA", mqa: "MQA" }[sharingOf(layer)]}`);
    reaches.hidden = !reach;
    if (!reach) return;
    const sizes = [...Array.from({ length: length - 1 }, (_, n) => n + 1), ALL];
    const size = (value) => (value < length ? value : ALL);
    const say = (value) => (value < length ? `${value} token${value > 1 ? "s" : ""}` : "all tokens");
    window.set(sizes, size(reach.window), say(reach.window));
    chunk.set(sizes, size(reach.chunk), say(reach.chunk));
    const limited = Math.min(reach.window, reach.chunk) < ALL;
    const counts = limited ? Array.from({ length: Math.max(MOST_SINKS, reach.sinks) + 1 }, (_, n) => n) : [0];
    sinks.set(counts, reach.sinks, limited ? String(reach.sinks) : "with a window or a chunk");
  };
  return { node, show };
}
