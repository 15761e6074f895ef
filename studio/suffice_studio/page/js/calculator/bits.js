// Bits of the weights of a checkpoint that is stored quantised, from its config.json;
// suffice/choose/fits/configs.py counts the same, and tests compare both.

const PLAIN_BITS = { float32: 32, bfloat16: 16, float16: 16 };

const quantisedRules = () => configTable().quantised;
const wrongEntry = (name, value, legal) => new Error(`${name}=${String(JSON.stringify(value)).slice(0, 60)}: ${legal}.`);
const listOf = (value) => (Array.isArray(value) ? value : []);

// { bits, warning }: the bits of a number of each part, scales included.
function checkpointBits({ entries: config }, layers) {
  const plain = PLAIN_BITS[config.torch_dtype || config.dtype] || 16;
  const entries = config.quantization_config ?? null;
  if (entries === null) return { bits: { weight_bits: plain }, warning: "" };
  if (!isObject(entries)) throw wrongEntry("quantization_config", entries, "use an object, or delete it");
  const loaded = entries.load_in_4bit === true || entries.load_in_8bit === true;
  const method = loaded ? "bitsandbytes" : String(entries.quant_method);
  const bits = quantisedBits(entries, method);
  if (bits === null) return { bits: { weight_bits: plain }, warning: "" };
  if (method === "mxfp4") return { bits: { weight_bits: plain, expert_bits: bits }, warning: "" };
  const rules = quantisedRules();
  const { kept, unread } = unquantisedParts(entries, layers);
  const listed = rules.skipped.some((name) => Array.isArray(entries[name]));
  if ((rules.grouped.includes(method) || !listed) && entries.lm_head !== true) kept.push("head");
  const found = { weight: bits, attention: bits, expert: bits, head: bits };
  if (entries.expert_dtype === "fp4") found.expert = 4 + scaleBits(entries, method) / 32;
  for (const part of kept) found[part] = plain;
  const { head, ...parts } = found;
  parts.embedding = config.tie_word_embeddings === true ? plain : (plain + head) / 2;
  const own = Object.entries(parts).filter(([part, value]) => part === "weight" || value !== parts.weight);
  const named = [...rules.by_layer.filter((name) => isFilled(entries[name])), ...unread];
  return {
    bits: Object.fromEntries(own.map(([part, value]) => [`${part}_bits`, value])),
    warning: named.length ? `Not counted of quantization_config: ${named.slice(0, 3).join(", ")}.` : "",
  };
}

const isFilled = (value) => Boolean(value) && (typeof value !== "object" || Object.keys(value).length > 0);

// The parts that are stored unquantised, and the names that are not understood.
function unquantisedParts(entries, layers) {
  const rules = quantisedRules();
  const [kept, unread] = [[], []];
  for (const name of rules.skipped.flatMap((key) => listOf(entries[key])).map(String)) {
    const text = name.toLowerCase();
    const numbers = (text.match(/[0-9]+/g) || []).map(Number);
    if (text.endsWith("gate") || rules.small.some((part) => text.includes(part)) || numbers[0] >= layers) continue;
    const words = (text.match(/[a-z_]+/g) || []).filter((word) => !rules.around.includes(word));
    const [, parts] = rules.parts.find(([legal]) => words.length && words.every((word) => legal.includes(word))) || [[], []];
    if (numbers.length || !parts.length) unread.push(name.slice(0, 60));
    else kept.push(...parts);
  }
  return { kept, unread };
}

// The bits of a quantised number; null if the files hold none.
function quantisedBits(entries, method) {
  const rules = quantisedRules();
  if (rules.grouped.includes(method)) { // codes, and for each group a scale of 16 bits and a zero point
    const bits = wholeBits(entries, "bits", 4);
    return bits + scaleShare(entries, "group_size", 128, 16 + bits);
  }
  if (method === "bitsandbytes") { // 64 numbers share a float32, or 8 bits, of which 256 share one
    const scales = entries.bnb_4bit_use_double_quant === true ? 8 / 64 + 32 / 16384 : 32 / 64;
    return entries.load_in_4bit === true ? 4 + scales : 8;
  }
  if (Object.hasOwn(rules.blocks, method)) {
    return 8 + scaleShare(entries, "weight_block_size", rules.blocks[method][0], scaleBits(entries, method));
  }
  if (method === "compressed-tensors") return compressedBits(entries);
  if (!Object.hasOwn(rules.fixed, method)) {
    const known = [...rules.grouped, ...Object.keys(rules.blocks), ...Object.keys(rules.fixed), ...rules.other].join(", ");
    throw wrongEntry("quant_method", method, `its bits are not known (known are ${known}); delete quantization_config and choose the weight precision`);
  }
  return rules.fixed[method];
}

const scaleBits = (entries, method) => (entries.scale_fmt === "ue8m0" ? 8 : quantisedRules().blocks[method][1]);

function compressedBits(entries) {
  const form = String(entries.format);
  const groups = isObject(entries.config_groups) ? entries.config_groups : {};
  const [weights, ...others] = Object.values(groups).map((one) => (isObject(one) ? one.weights ?? null : null));
  if (others.some((one) => JSON.stringify(one) !== JSON.stringify(weights))) {
    throw wrongEntry("config_groups", Object.keys(groups), "their bits differ; delete quantization_config and choose the weight precision");
  }
  if (!isObject(weights) || form === "dense") return null;
  const bits = wholeBits(weights, "num_bits", 8);
  const scale = (/^(mx|nv)/.test(form) ? 8 : 16) + (weights.symmetric === false ? bits : 0);
  const stored = form.includes("pack") ? 32 / Math.floor(32 / bits) : 8; // whole codes in 32 bits, or bytes
  return stored + scaleShare(weights, (weights.block_structure ?? null) === null ? "group_size" : "block_structure", null, scale);
}

function wholeBits(entries, name, otherwise) {
  const bits = entries[name] === undefined ? otherwise : entries[name];
  if (!(Number.isInteger(bits) && bits >= 2 && bits <= 8)) throw wrongEntry(name, bits, "use 2 to 8");
  return bits;
}

// The bits of a scale for each number of its group; 0 for whole rows or tensors.
function scaleShare(entries, name, otherwise, scale) {
  const size = entries[name] === undefined ? otherwise : entries[name];
  const sizes = Array.isArray(size) ? size : [size];
  if (size === null || (sizes.length === 1 && sizes[0] === -1)) return 0;
  if (!sizes.every((number) => Number.isInteger(number) && number > 0)) throw wrongEntry(name, size, "use numbers of at least 1");
  return scale / sizes.reduce((product, number) => product * number, 1);
}
