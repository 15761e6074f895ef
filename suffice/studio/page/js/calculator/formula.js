// The calculator's formulas for the page that nobody serves; tests hold them against Python's.

const PROJECTIONS = {
  Standard: { keys: true, values: true },
  Optimised: { keys: true, values: false },
  Efficient: { keys: false, values: false },
  Latent: { keys: true, values: false },
};
const CODED = { block: 64, recent: 64, group: 64, range: 8 };
const LARGEST_SIZE = 2 ** 32;
const LONGEST_TEXT = 2 ** 30;

const numKvHeads = (m) => m.num_kv_heads || m.num_heads;
const headWidth = (m) => m.head_dim || Math.floor(m.d_model / m.num_heads);
const kvWidth = (m) => numKvHeads(m) * headWidth(m);
const fullLayers = (m) => (m.full_every ? Math.floor(m.layers / m.full_every) : 0);
const isSums = (m, full) => !full && m.kernel === "Elu";
const isMixed = (m, full) => !full && m.mixing !== "NoMixing";

// Numbers that a layer keeps for each token: as many tensors as AttentionSpec.cost says.
function stateNumbers(m, full) {
  const [kernel, mixing] = full ? ["Softmax", "NoMixing"] : [m.kernel, m.mixing];
  const words = [m.projections, kernel, mixing, ...(m.rotary ? ["rotary"] : [])];
  return kvWidth(m) * FACTS.calculator.tensors[words.join(" ")];
}

const stateFixed = (m, full) =>
  isSums(m, full) ? numKvHeads(m) * headWidth(m) * (headWidth(m) + 1) : 0;

function layerParameters(m, full) {
  const { keys, values } = PROJECTIONS[m.projections];
  const q = m.num_heads * headWidth(m);
  const outputs = [q, ...(keys ? [kvWidth(m)] : []), ...(values ? [kvWidth(m)] : [])];
  const maps = outputs.reduce((sum, width) => sum + m.d_model * width, q * m.d_model);
  const biases = outputs.reduce((sum, width) => sum + width, m.d_model);
  const size = isMixed(m, full) ? m.mixing_size : 0;
  const mixing = m.mixing === "Alignment" ? size * (size + 1) : size ? size + 1 : 0;
  return maps + (m.bias ? biases : 0) + mixing;
}

function blockBytes(m, full, bits) {
  const numbers = stateNumbers(m, full);
  if (!numbers) return 0;
  const others = numbers / kvWidth(m) - 1;
  const groups = Math.ceil(headWidth(m) / CODED.group) * numKvHeads(m);
  const ranges = CODED.range * (kvWidth(m) + others * CODED.block * groups);
  return Math.floor((numbers * CODED.block * bits) / 8) + ranges;
}

function stateBytes(m, full, kept) {
  const fixed = 4 * stateFixed(m, full);
  const numbers = stateNumbers(m, full);
  if (m.state_bits > 8) return fixed + (numbers * kept * m.state_bits) / 8;
  const blocks = Math.floor(Math.max(kept - CODED.recent, 0) / CODED.block);
  const plain = (kept - blocks * CODED.block) * numbers * 2;
  return fixed + plain + blocks * blockBytes(m, full, m.state_bits);
}

function tokenBytes(m, full) {
  if (m.state_bits > 8) return (stateNumbers(m, full) * m.state_bits) / 8;
  return blockBytes(m, full, m.state_bits) / CODED.block;
}

function layerKind(m, full, count, length) {
  const window = full ? 0 : m.window;
  const room = window ? window + m.sinks : length;
  const sums = stateNumbers(m, full) === 0;
  return {
    kind: window ? "window" : sums ? "sums" : "full",
    count,
    kept: sums ? 0 : Math.min(length, room),
    state: stateBytes(m, full, Math.min(length, room)),
    per_token: !window || length < room ? tokenBytes(m, full) : 0,
  };
}

const layerKinds = (m, length) =>
  [[false, m.layers - fullLayers(m)], [true, fullLayers(m)]]
    .filter(([, count]) => count)
    .map(([full, count]) => layerKind(m, full, count, length));

const stateOf = (m, length) =>
  m.batch * layerKinds(m, length).reduce((sum, one) => sum + one.count * one.state, 0);

function weightsOf(m) {
  const fulls = fullLayers(m);
  const maps = m.gated ? 3 : 2;
  const biases = m.mlp_bias ? (maps - 1) * m.mlp_width + m.d_model : 0;
  const mlp = m.mlp_width ? maps * m.d_model * m.mlp_width + biases : 0;
  const norms = (m.layers * m.norms + Math.min(m.norms, 1)) * m.d_model * (m.norm_bias ? 2 : 1);
  const found = {
    attention: (m.layers - fulls) * layerParameters(m, false) + fulls * layerParameters(m, true),
    mlp: m.layers * mlp,
    norms: norms + (m.qk_norm ? 2 * m.layers * headWidth(m) : 0),
    embedding: (m.vocabulary + m.positions) * m.d_model,
    head: m.tied ? 0 : m.vocabulary * m.d_model,
  };
  found.total = Object.values(found).reduce((sum, part) => sum + part, 0);
  return found;
}

const numberBytes = (m) => (m.weight_bits === 32 ? 4 : 2);
const weightBytes = (m) => Math.ceil((weightsOf(m).total * m.weight_bits) / 8);

function activationBytes(m, length) {
  const { keys, values } = PROJECTIONS[m.projections];
  const q = m.num_heads * headWidth(m);
  const heads = 2 * q + (keys ? kvWidth(m) : 0) + (values ? kvWidth(m) : 0);
  const features = 2 * m.d_model + Math.max(heads, (m.gated ? 3 : 2) * m.mlp_width);
  return m.batch * Math.min(length, m.chunk || length) * features * numberBytes(m);
}

const totalBytes = (m, length) => weightBytes(m) + stateOf(m, length) + activationBytes(m, length);
const reads = (m, length) => m.mixing !== "Alignment" || length <= m.mixing_size;

function longestText(m, memory) {
  const fits = (length) => totalBytes(m, length) <= memory;
  const limit = m.mixing === "Alignment" ? m.mixing_size : LONGEST_TEXT;
  if (fits(limit)) return limit === LONGEST_TEXT ? null : limit;
  let low = 0;
  let high = limit;
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return low;
}

function refuseComposition(m, length) {
  const q = numKvHeads(m);
  const broken = [];
  for (const [name, value] of Object.entries(m)) {
    if (typeof FACTS.calculator.empty[name] !== "number") continue;
    const least = ["d_model", "layers", "num_heads", "batch"].includes(name) ? 1 : 0;
    if (!Number.isInteger(value) || value < least || value > LARGEST_SIZE) {
      throw new Error(`${name}=${value}: give ${least} to ${whole(LARGEST_SIZE)}.`);
    }
  }
  if ((m.mixing === "NoMixing") !== (m.mixing_size === 0)) {
    broken.push(
      `mixing=${m.mixing} with mixing_size=${m.mixing_size}: give a size of at least 1 to ` +
        "Alignment and ToeplitzAlignment, and 0 to NoMixing.",
    );
  }
  if (m.sinks && !m.window) {
    broken.push(`sinks=${m.sinks} without a window: everything is kept already; give a window.`);
  }
  if (m.window && m.mixing === "Alignment") {
    broken.push("Alignment reads all earlier values: a window would forget nothing.");
  }
  if (m.window && m.kernel === "Elu") {
    broken.push("Elu sums over all earlier keys: a window has no pairs to choose from.");
  }
  if (!m.head_dim && m.d_model % m.num_heads) {
    broken.push(`num_heads=${m.num_heads} does not divide d_model=${m.d_model}; or give head_dim.`);
  }
  if (m.num_heads % q) {
    broken.push(`num_kv_heads=${q} does not divide num_heads=${m.num_heads}.`);
  }
  const sliced = ["Efficient", "Optimised"].includes(m.projections);
  const fits = kvWidth(m) === m.d_model || (kvWidth(m) < m.d_model && q !== m.num_heads);
  if (m.rotary && headWidth(m) % 2) {
    broken.push(`head_dim=${headWidth(m)} cannot be turned: rotary positions need an even number.`);
  }
  if (!broken.length && sliced && !fits) {
    broken.push(
      `${m.projections} takes column slices of its input, but num_kv_heads * head_dim = ` +
        `${kvWidth(m)} and the input has ${m.d_model} columns.`,
    );
  }
  if (!broken.length && !reads(m, length)) {
    broken.push(
      `${m.mixing} is made for ${whole(m.mixing_size)} tokens and cannot read ${whole(length)}; ` +
        "give it a longer mixing_size, or less to read.",
    );
  }
  if (broken.length) throw new Error(broken.join(" "));
}

function answerOf(m, length, memory) {
  refuseComposition(m, length);
  const layers = layerKinds(m, length);
  const numbers = {
    state: stateOf(m, length),
    weight_bytes: weightBytes(m),
    activations: activationBytes(m, length),
  };
  return {
    name: m.name,
    length,
    layers,
    per_token: layers.reduce((sum, one) => sum + one.count * one.per_token, 0),
    weights: weightsOf(m),
    ...numbers,
    scores: m.batch * m.num_heads * length * length * numberBytes(m),
    longest: memory === null ? null : longestText(m, memory),
    curve: FACTS.calculator.lengths.map((one) => (reads(m, one) ? stateOf(m, one) : null)),
    total: numbers.state + numbers.weight_bytes + numbers.activations,
  };
}

LOCAL.calculate = ({ compositions, length, memory }) => ({
  lengths: FACTS.calculator.lengths,
  answers: compositions.map((m) => {
    try {
      if (!(Number.isInteger(length) && length >= 1 && length <= LONGEST_TEXT)) {
        throw new Error(`length=${length}: give a whole number from 1 to ${whole(LONGEST_TEXT)}.`);
      }
      return answerOf({ ...FACTS.calculator.empty, ...m }, length, memory);
    } catch (error) {
      return { error: error.message };
    }
  }),
});
