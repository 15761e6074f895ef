// The calculator's formulas; tests compare them with the specs and models of the library.

const PROJECTIONS = {
  Standard: { keys: true, values: true },
  Optimised: { keys: true, values: false },
  Efficient: { keys: false, values: false },
  Latent: { keys: true, values: false },
  MLA: { keys: true, values: true },
};
const QUANTISED = { block: 64, recent: 64, group: 64, range: 8 }; // as suffice.memory.Quantised
const FRACTIONS = ["weight_bits", "attention_bits", "expert_bits", "embedding_bits"];
const LARGEST_SIZE = 2 ** 32;
const LONGEST_TEXT = 2 ** 30;

const numKvHeads = (m) => m.num_kv_heads || m.num_heads;
const headWidth = (m) => m.head_dim || Math.floor(m.d_model / m.num_heads);
const isLatent = (m) => m.projections === "MLA";
// heads and width of a cached tensor: MLA caches one latent with the rotary key that all heads share
const cacheHeads = (m) => (isLatent(m) ? 1 : numKvHeads(m));
const cacheWidth = (m) => (isLatent(m) ? m.rank + m.rotary_dim : headWidth(m));
const kvWidth = (m) => numKvHeads(m) * headWidth(m);
const isRecurrent = (m, full) => !full && m.recurrent_numbers > 0;
// a model whose heads are those of its full layers, which may differ
const headsOfKind = (m, full) =>
  full ? { ...m, num_kv_heads: m.full_kv_heads || m.num_kv_heads, head_dim: m.full_head_dim || m.head_dim } : m;
const indexers = (m) => m.index_layers || m.layers;

// The kinds of layers, how many there are, and how many cache: the last shared ones read others'.
function kindsOf(m) {
  const own = m.layers - m.shared_layers;
  const full = m.full_every ? Math.floor(m.layers / m.full_every) : m.full_count;
  const cached = m.full_every ? Math.floor(own / m.full_every) : m.full_count;
  return [
    { full: false, count: m.layers - full, cached: own - cached },
    { full: true, count: full, cached },
  ].filter(({ count }) => count);
}
const isSums = (m, full) => !full && m.kernel === "Elu";
const isMixed = (m, full) => !full && m.mixing !== "NoMixing";

// [cached, unmixed]: tensors that a layer caches for each token, as AttentionSpec says.
function cachedTensors(m, full) {
  const [kernel, mixing] = full ? ["Softmax", "NoMixing"] : [m.kernel, m.mixing];
  if (isLatent(m)) return [1, 0];
  const key = [m.projections, kernel, mixing, ...(m.rotary ? ["rotary"] : [])];
  return FACTS.calculator.tensors[key.join(" ")];
}

const stateFixed = (m, full) =>
  isSums(m, full) ? numKvHeads(m) * headWidth(m) * (headWidth(m) + 1) : 0;

// The outputs of the maps of x, and the numbers of the map back to x.
function latentMaps(m) {
  const value = m.value_dim || headWidth(m);
  const q = m.num_heads * (headWidth(m) + m.rotary_dim);
  const up = m.num_heads * (headWidth(m) + value);
  return { q, up, down: m.rank + m.rotary_dim, out: m.num_heads * value };
}

function latentParameters(m) {
  const { q, up, down, out } = latentMaps(m);
  const queries = m.query_rank ? m.d_model * m.query_rank + m.query_rank * q : m.d_model * q;
  const biases = (m.query_rank ? m.query_rank + q : q) + down + m.d_model;
  const maps = queries + m.d_model * down + m.rank * up + out * m.d_model;
  return maps + m.rank + m.query_rank + (m.bias ? biases : 0);
}

// The parameters of the attention of all layers of a kind.
function kindParameters(model, { full, count, cached }) {
  if (isRecurrent(model, full)) return count * model.recurrent_parameters;
  const m = headsOfKind(model, full);
  const values = m.d_model * kvWidth(m);
  const left = m.one_kv_map && full ? values : 0;
  const gate = m.gate ? m.d_model * m.num_heads * headWidth(m) : 0;
  const norm = m.qk_norm ? headWidth(m) : 0;
  const each = attentionParameters(m, full) + gate + 2 * norm - left;
  return count * each - (count - cached) * (2 * values + norm - left);
}

function attentionParameters(m, full) {
  if (isLatent(m)) return latentParameters(m);
  const { keys, values } = PROJECTIONS[m.projections];
  const q = m.num_heads * headWidth(m);
  const outputs = [q, ...(keys ? [kvWidth(m)] : []), ...(values ? [kvWidth(m)] : [])];
  const maps = outputs.reduce((sum, width) => sum + m.d_model * width, q * m.d_model);
  const biases = outputs.reduce((sum, width) => sum + width, m.d_model);
  const size = isMixed(m, full) ? m.mixing_size : 0;
  const mixing = m.mixing === "Alignment" ? size * (size + 1) : size ? size + 1 : 0;
  return maps + (m.bias ? biases : 0) + mixing;
}

// FLOPs of the matrix products of a layer of softmax attention, of each head's pairs, as Cost counts.
const attentionFlops = (m, tokens, pairs) =>
  2 * tokens * attentionParameters({ ...m, bias: false }, false) + 4 * headWidth(m) * m.num_heads * pairs;

const windowOf = (m, full) => (full ? 0 : m.window);
const historyOf = (m, full) => (!full && m.mixing === "ToeplitzAlignment" ? m.mixing_size - 1 : 0);
const itemBytes = (m) => (m.state_bits === 32 ? 4 : 2);
const entriesOf = (tokens, window, sinks) =>
  window ? Math.min(tokens, window) + Math.min(tokens, sinks) : tokens;

// Bytes of quantised blocks and of the latest positions, which are not quantised yet.
function quantisedBytes(m, tensors, tokens, window, sinks) {
  const { block, recent, group, range } = QUANTISED;
  const width = cacheWidth(m);
  const groups = Math.ceil(width / Math.min(group, width));
  const padded = groups * Math.min(group, width);
  const keyBlock = (block * width * m.state_bits) / 8 + range * width;
  const otherBlock = (block * padded * m.state_bits) / 8 + range * block * groups;
  const encoded = Math.floor(Math.max(tokens - recent, 0) / block);
  const blocks = window
    ? entriesOf(encoded, Math.ceil((window - 1) / block) + 1, Math.ceil(sinks / block))
    : encoded;
  const tail = (tokens - encoded * block) * tensors * width * itemBytes(m);
  return cacheHeads(m) * (blocks * (keyBlock + (tensors - 1) * otherBlock) + tail);
}

function layerBytes(model, full, tokens, window = windowOf(model, full)) {
  const m = headsOfKind(model, full);
  if (isRecurrent(m, full)) return 4 * (m.recurrent_numbers + m.convolution_numbers);
  const [cached, unmixed] = cachedTensors(m, full);
  const history = historyOf(m, full) + 1;
  const widened = window && Math.max(window, history);
  const sinks = window ? m.sinks : 0;
  const token = cacheHeads(m) * cacheWidth(m) * itemBytes(m);
  let total = 4 * stateFixed(m, full);
  total += unmixed * token * entriesOf(tokens, window && history, 0);
  if (!cached) return total;
  return m.state_bits > 8
    ? total + cached * token * entriesOf(tokens, widened, sinks)
    : total + quantisedBytes(m, cached, tokens, widened, sinks);
}

function layerKind(m, { full, cached: count }, length) {
  const window = windowOf(m, full);
  const room = window ? Math.max(window, historyOf(m, full) + 1) + m.sinks : length;
  const sums = isRecurrent(m, full) || cachedTensors(m, full).every((tensors) => !tensors);
  const { block } = QUANTISED;
  const added = layerBytes(m, full, LONGEST_TEXT + block, 0) - layerBytes(m, full, LONGEST_TEXT, 0);
  return {
    kind: window ? "window" : sums ? "sums" : "full",
    count,
    kept: sums ? 0 : Math.min(length, room),
    state: layerBytes(m, full, length),
    per_token: !window || length < room ? added / block : 0,
  };
}

const layerKinds = (m, length) =>
  kindsOf(m).filter(({ cached }) => cached).map((kind) => layerKind(m, kind, length));

const indexBytes = (m, length) => indexers(m) * m.index_dim * itemBytes(m) * length;

const stateOf = (m, length) =>
  m.batch * kindsOf(m).reduce((sum, { full, cached }) => sum + cached * layerBytes(m, full, length), indexBytes(m, length));

function weightsOf(m) {
  const maps = m.gated ? 3 : 2;
  const mlp = (width) => (width ? maps * m.d_model * width + (m.mlp_bias ? (maps - 1) * width + m.d_model : 0) : 0);
  const routed = m.experts ? m.layers - m.dense_layers : 0;
  const expert = mlp(m.expert_width);
  const router = m.experts * (m.d_model + (m.mlp_bias ? 1 : 0));
  const experts = (m.experts + m.shared_experts) * expert + router;
  const norms = (m.layers * m.norms + Math.min(m.norms, 1)) * (m.norm_bias ? 2 : 1);
  const weights = {
    attention: kindsOf(m).reduce((sum, kind) => sum + kindParameters(m, kind), 0),
    mlp: (m.layers - routed) * mlp(m.mlp_width) + routed * experts,
    norms: norms * m.d_model,
    embedding: (m.vocabulary + m.positions) * m.d_model + m.extra_embeddings,
    head: m.tied ? 0 : m.vocabulary * m.d_model,
    other: m.extra_parameters,
  };
  weights.total = Object.values(weights).reduce((sum, part) => sum + part, 0);
  weights.resting = routed * (m.experts - m.active_experts) * expert;
  weights.experts = routed * m.experts * maps * m.d_model * m.expert_width;
  weights.active = weights.total - weights.resting - (m.active_embedding ? 0 : weights.embedding);
  return weights;
}

// Bytes as other programs allocate them, in the versions that families.json names; null is not run.
function engineBytes(m, length) {
  const { engines } = configTable();
  const plain = ["Standard", "MLA"].includes(m.projections) && !m.mixing_size && m.kernel === "Softmax" && !m.sinks;
  const tensors = isLatent(m) ? 1 : 2;
  const width = (full) => (isLatent(m) ? cacheWidth(m) : kvWidth(headsOfKind(m, full)));
  const run = (name, bytesOf) => {
    const item = engines[name].bytes[m.state_bits];
    return plain && item ? Math.ceil(m.batch * bytesOf(engines[name], item)) : null;
  };
  return {
    "llama.cpp": run("llama.cpp", (facts, item) => llamaCppBytes(m, length, facts, (full) => tensors * width(full) * item) + indexers(m) * m.index_dim * padded(length, facts.cells) * item),
    vllm: run("vllm", (facts, item) => vllmBytes(m, length, facts, (full) => tensors * width(full) * item)),
  };
}

const padded = (length, block) => Math.ceil(length / block) * block;

function llamaCppBytes(m, length, { cells, batch }, tokenBytes) {
  const full = padded(length, cells);
  const windowed = padded(Math.min(full, m.window + batch), cells);
  return kindsOf(m).reduce((sum, kind) => {
    if (isRecurrent(m, kind.full)) return sum + 4 * kind.cached * (m.recurrent_numbers + m.convolution_numbers);
    return sum + kind.cached * (windowOf(m, kind.full) ? windowed : full) * tokenBytes(kind.full);
  }, 0);
}

// The pages of all groups of layers, which have the same bytes and as many layers.
function vllmBytes(m, length, facts, tokenBytes) {
  const kinds = kindsOf(m).filter(({ cached }) => cached);
  const state = facts.bytes[16] * (m.recurrent_numbers + m.convolution_numbers);
  const attends = kinds.filter(({ full }) => !isRecurrent(m, full));
  const tokens = facts.page * (state && attends.length ? Math.ceil(state / (facts.page * tokenBytes(true))) : 1);
  const page = attends.length ? tokens * Math.max(...attends.map(({ full }) => tokenBytes(full))) : state;
  const groups = kinds.map(({ full, cached }) => {
    if (isRecurrent(m, full)) return [cached, 1];
    const own = tokens * tokenBytes(full);
    const room = page % own ? tokens : (tokens * page) / own;
    if (!windowOf(m, full)) return [cached, Math.ceil(length / room)];
    const more = m.chunked ? 0 : 1;
    return [cached, Math.ceil(Math.min(m.window - more + facts.batch, length) / room) + more];
  });
  const [least, most] = [Math.min(...groups.map(([count]) => count)), Math.max(...groups.map(([count]) => count))];
  const size = most < 1.5 * least ? most : least;
  const pages = groups.reduce((sum, [count, held]) => sum + Math.ceil(count / size) * held, 0);
  return size * page * pages + facts.index * m.index_dim * indexers(m) * padded(length, tokens);
}

const numberBytes = (m) => (m.weight_bits === 32 ? 4 : 2);

// Bits of a number of a part, with its share of a 16-bit scale.
function bitsOf(m, part) {
  const bits = m[`${part}_bits`] || m.weight_bits;
  return m.scale_group && bits < 16 && Number.isInteger(bits) ? bits + 16 / m.scale_group : bits;
}

function weightBytes(m) {
  const weights = weightsOf(m);
  const parts = { attention: weights.attention, expert: weights.experts, embedding: weights.embedding + weights.head };
  let [bits, rest] = [0, weights.total];
  for (const [part, numbers] of Object.entries(parts)) {
    bits += numbers * bitsOf(m, part);
    rest -= numbers;
  }
  return Math.ceil((bits + rest * bitsOf(m, "weight")) / 8);
}

function activationBytes(m, length) {
  const { keys, values } = PROJECTIONS[m.projections];
  const q = m.num_heads * headWidth(m);
  const latent = latentMaps(m);
  const ofLatent = latent.out + latent.q + m.query_rank + latent.down + latent.up;
  const heads = isLatent(m) ? ofLatent : 2 * q + (keys ? kvWidth(m) : 0) + (values ? kvWidth(m) : 0);
  const reading = (m.active_experts + m.shared_experts) * m.expert_width;
  const hidden = (m.gated ? 3 : 2) * Math.max(m.mlp_width, reading);
  const features = 2 * m.d_model + Math.max(heads, hidden);
  return m.batch * Math.min(length, m.chunk || length) * features * numberBytes(m);
}

const reads = (m, length) => m.mixing !== "Alignment" || length <= m.mixing_size;

function longestText(m, memory) {
  const { block, recent } = QUANTISED;
  const left = memory - weightBytes(m);
  const fits = (length) => {
    // positions wait in 16 bits until a block is full, so the state may be larger before
    const fullest = Math.max(length - modulo(length - recent + 1, block), 0);
    const state = Math.max(stateOf(m, length), stateOf(m, fullest));
    return state + activationBytes(m, length) <= left;
  };
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

function refuseLatent(m) {
  if (!isLatent(m)) {
    const own = m.rank || m.rotary_dim || m.value_dim || m.query_rank;
    return own ? [`rank=${m.rank}, rotary_dim=${m.rotary_dim} belong to MLA, not to ${m.projections}; give 0.`] : [];
  }
  const broken = [];
  if (!m.rank || !m.rotary_dim) broken.push(`MLA with rank=${m.rank}, rotary_dim=${m.rotary_dim}: give both.`);
  if (m.num_kv_heads && m.num_kv_heads !== m.num_heads) {
    broken.push(`num_kv_heads=${m.num_kv_heads}: the heads of MLA share one latent already; give 0.`);
  }
  if (m.kernel !== "Softmax" || m.mixing !== "NoMixing") broken.push("MLA has a softmax and no mixing.");
  if (m.rotary && m.rotary_dim % 2) broken.push(`rotary_dim=${m.rotary_dim} cannot be rotated: give an even number.`);
  return broken;
}

function refuseFullLayers(m) {
  const broken = [];
  if (m.shared_layers && (m.full_count || m.shared_layers >= m.layers)) {
    broken.push(`shared_layers=${m.shared_layers} with full_count=${m.full_count}: at least one of ${m.layers} layers has to cache, and full_every says which are full.`);
  }
  if (m.full_count && (m.full_every || m.full_count > m.layers)) {
    broken.push(`full_count=${m.full_count} with full_every=${m.full_every} in ${m.layers} layers: give one of the two, and no more than there are.`);
  }
  if (Boolean(m.recurrent_numbers) !== Boolean(m.recurrent_parameters)) {
    broken.push("recurrent_numbers and recurrent_parameters: give both, or none.");
  }
  if (m.recurrent_numbers && (m.kernel !== "Softmax" || m.mixing !== "NoMixing" || m.window)) {
    broken.push("recurrent_numbers are the state of layers without attention: give no window, mixing or other kernel.");
  }
  return broken;
}

function refuseExperts(m) {
  if (Boolean(m.experts) !== Boolean(m.expert_width && m.active_experts)) {
    return [`experts=${m.experts} with expert_width=${m.expert_width} and active_experts=${m.active_experts}: give all three, or none.`];
  }
  if (!m.experts && (m.shared_experts || m.dense_layers)) {
    return ["shared_experts and dense_layers go with experts; give 0."];
  }
  if (m.active_experts > m.experts || m.dense_layers > m.layers) {
    return [`active_experts=${m.active_experts} of ${m.experts}, dense_layers=${m.dense_layers} of ${m.layers}: give no more than there are.`];
  }
  return [];
}

function refuseModel(m, length) {
  const q = numKvHeads(m);
  const broken = [];
  for (const [name, value] of Object.entries(m)) {
    if (typeof FACTS.calculator.empty[name] !== "number") continue;
    if (FRACTIONS.includes(name)) {
      if (!(value >= 0 && value <= 32)) throw new Error(`${name}=${value}: give 0 to 32.`);
      continue;
    }
    const least = ["d_model", "layers", "num_heads", "batch"].includes(name) ? 1 : name === "extra_parameters" ? -LARGEST_SIZE : 0;
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
    broken.push(`sinks=${m.sinks} without a window: everything is cached anyway; give a window.`);
  }
  if (m.window && m.mixing === "Alignment") {
    broken.push("Alignment reads all earlier values: with a window nothing could be dropped.");
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
  broken.push(...refuseFullLayers(m), ...refuseLatent(m), ...refuseExperts(m));
  const sliced = ["Efficient", "Optimised"].includes(m.projections);
  const fits = kvWidth(m) === m.d_model || (kvWidth(m) < m.d_model && q !== m.num_heads);
  if (m.rotary && !isLatent(m) && headWidth(m) % 2) {
    broken.push(`head_dim=${headWidth(m)} cannot be rotated: rotary positions need an even number.`);
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
  refuseModel(m, length);
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
    engines: engineBytes(m, length),
    per_token: layers.reduce((sum, one) => sum + one.count * one.per_token, indexBytes(m, 1)),
    weights: weightsOf(m),
    ...numbers,
    scores: m.batch * m.num_heads * length * length * numberBytes(m),
    longest: memory === null ? null : longestText(m, memory),
    curve: FACTS.calculator.lengths.map((one) => (reads(m, one) ? stateOf(m, one) : null)),
    trained_state: m.trained >= 1 && m.trained <= LONGEST_TEXT && reads(m, m.trained) ? stateOf(m, m.trained) : null,
    total: numbers.state + numbers.weight_bytes + numbers.activations,
  };
}

function calculate({ models, length, memory }) {
  return models.map((model) => {
    try {
      if (!(Number.isInteger(length) && length >= 1 && length <= LONGEST_TEXT)) {
        throw new Error(`length=${length}: give a whole number from 1 to ${whole(LONGEST_TEXT)}.`);
      }
      return answerOf({ ...FACTS.calculator.empty, ...model }, length, memory);
    } catch (error) {
      return { error: error.message };
    }
  });
}
