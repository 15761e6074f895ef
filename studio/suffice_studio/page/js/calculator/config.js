// A model from the config.json that lies beside published weights, by the table families.json;
// suffice/choose/fits/configs.py reads the same table, and tests compare both.

const LONGEST_CONFIG = 200000; // characters

const configTable = () => FACTS.calculator.families;

// The entries of a config.json, and what its family leaves out.
function configOf(content) {
  let entries = { ...content };
  for (const name of configTable().nested) {
    if (isObject(entries[name])) entries = { ...entries, ...entries[name] };
  }
  const type = String(entries.model_type || "");
  const { families } = configTable();
  const known = Object.hasOwn(families, type.toLowerCase());
  const family = known ? families[type.toLowerCase()] : {};
  for (const [theirs, ours] of Object.entries(family.renamed || {})) {
    const [inner, outer] = theirs.split(".").reverse();
    const place = outer === "per_layer_config" ? alike(entries[outer]) : outer ? entries[outer] : entries;
    if (isObject(place) && Object.hasOwn(place, inner)) entries[ours] = place[inner];
  }
  const get = (name) => entries[name] ?? (family.defaults || {})[name];
  const number = (...names) => {
    for (const name of names) {
      let value = get(name);
      if (Array.isArray(value) && value.length && value.every((one) => one === value[0])) [value] = value;
      if (value === undefined || value === null) continue;
      if (!Number.isInteger(value) || value < 0 || value > LARGEST_SIZE) {
        throw new Error(`${name}=${JSON.stringify(value).slice(0, 40)}: give a whole number, one for all layers.`);
      }
      return value;
    }
    return 0;
  };
  const list = (name) => (Array.isArray(get(name)) ? get(name) : []);
  return { entries, type, known, family, get, number, list };
}

// What is said of each of some layers.
function alike(byLayer) {
  const [first, ...others] = Object.values(byLayer || {});
  if (others.some((one) => JSON.stringify(one) !== JSON.stringify(first))) {
    throw new Error("per_layer_config: layers of more than two kinds are not counted here.");
  }
  return first;
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

function parsedConfig(text) {
  if (text.length > LONGEST_CONFIG) throw new Error("that is too long for a config.json; paste the file alone.");
  let content;
  try {
    content = JSON.parse(text);
  } catch (error) {
    throw new Error("that is no JSON; paste a whole config.json, from { to }.");
  }
  if (!isObject(content)) throw new Error("a config.json is an object; paste all of it, from { to }.");
  return content;
}

function modelOfConfig(text) {
  const content = parsedConfig(text);
  const config = configOf(content);
  refuseConfig(config);
  const { family, get, number } = config;
  const attends = family.attention !== false;
  const d_model = number("hidden_size", "n_embd", "d_model", "dim");
  const layers = number("num_hidden_layers", "n_layer", "n_layers", "num_layers");
  const heads = number("num_attention_heads", "n_head", "n_heads", "num_heads");
  const missing = Object.entries({ hidden_size: d_model, num_hidden_layers: layers, num_attention_heads: heads })
    .filter(([, value]) => !value)
    .map(([name]) => name);
  if (missing.length) throw new Error(`this config.json has no ${missing.join(", no ")}.`);
  const plain = Boolean(family.plain);
  const normed = family.qk_norm ?? false;
  const tied = get("tie_word_embeddings");
  const model = {
    ...FACTS.calculator.empty,
    name: configName(content, config),
    d_model,
    layers,
    num_heads: attends ? heads : 1,
    ...(attends ? configAttention(config, heads) : {}),
    vocabulary: number("vocab_size"),
    trained: number("max_position_embeddings", "n_positions", "max_seq_len"),
    gate: Boolean(family.gate) && get("attn_output_gate") !== false,
    bias: get("attention_bias") === true || get("qkv_bias") === true || plain,
    mlp_bias: get("mlp_bias") === true || plain || Boolean(family.mlp_bias),
    norm_bias: plain,
    gated: !plain,
    positions: plain ? number("n_positions") : 0,
    rotary: !plain,
    norms: family.norms ?? 2,
    qk_norm: typeof normed === "string" ? get(normed) === true : normed,
    active_embedding: family.active_embedding ?? true,
    tied: typeof tied === "boolean" ? tied : Boolean(family.tied),
    ...(attends ? configExperts(config, layers, d_model) : {}),
  };
  Object.assign(model, configLayers(config, model));
  model.extra_parameters = conditionalSum(config, "parameters", model);
  model.extra_embeddings = conditionalSum(config, "embeddings", model);
  return Object.assign(model, checkpointBits(config, layers).bits);
}

function refuseConfig({ entries, type, known, family }) {
  const { not_decoders, recurrent_keys } = configTable();
  if (entries.is_encoder_decoder === true || not_decoders.some((name) => type.toLowerCase().startsWith(name))) {
    throw new Error(`${type || "this"} is not a decoder: it keeps no KV cache between tokens; give the config.json of a decoder.`);
  }
  for (const name of ["num_kv_shared_layers", "index_head_dim"]) {
    if (entries[name] && !known) throw new Error(`${name}: what ${type} caches is not known here.`);
  }
  const named = Object.keys(entries).find((key) => entries[key] !== null && recurrent_keys.some((part) => key.toLowerCase().includes(part)));
  if (named && !family.recurrence) {
    throw new Error(`${named} says that layers of ${type || "this model"} are no attention; their state is not known here.`);
  }
}

// What is not known of a model; empty if nothing is.
function configWarning(text) {
  const config = configOf(parsedConfig(text));
  const { type, known, entries } = config;
  const code = Object.hasOwn(entries, "auto_map") ? " Its classes come with the checkpoint and are not run." : "";
  const family = `${type ? `The family ${type} is` : "A config.json without model_type is"} not known here and was counted as a plain decoder: check the layers, norms and biases.${code}`;
  const layers = config.number("num_hidden_layers", "n_layer", "n_layers", "num_layers");
  return [known ? "" : family, checkpointBits(config, layers).warning].filter(Boolean).join(" ");
}

function configName(outer, config) {
  const path = outer._name_or_path || config.entries._name_or_path;
  return String(path || config.type || "from config.json").split("/").pop().slice(0, 60) || "from config.json";
}

function configAttention({ get, number, list }, heads) {
  const rank = number("kv_lora_rank");
  if (rank) {
    return {
      projections: "MLA",
      rank,
      rotary_dim: number("qk_rope_head_dim"),
      head_dim: number("qk_nope_head_dim"),
      value_dim: number("v_head_dim"),
      query_rank: number("q_lora_rank"),
      index_dim: number("index_head_dim"),
      index_layers: list("indexer_types").filter((name) => name === "full").length,
    };
  }
  const shared = get("multi_query") === true ? 1 : number("num_key_value_heads", "n_kv_heads", "num_kv_heads");
  const one_kv_map = get("attention_k_eq_v") === true;
  return {
    num_kv_heads: shared === heads ? 0 : shared,
    head_dim: number("head_dim"),
    full_head_dim: number("global_head_dim"),
    full_kv_heads: one_kv_map ? number("num_global_key_value_heads") : 0,
    one_kv_map,
    shared_layers: number("num_kv_shared_layers"),
  };
}

function configExperts({ family, get, number, list }, layers, width) {
  const experts = number("num_experts", "n_routed_experts", "num_local_experts");
  const mlp = number("intermediate_size", "n_inner", "ffn_dim", "hidden_dim") || 4 * width;
  let beside = number("shared_intermediate_size", "shared_expert_intermediate_size");
  if (experts < 2) return { mlp_width: beside || mlp };
  const step = number("decoder_sparse_step", "interleave_moe_layer_step") || 1;
  const [first, listed, kinds] = [number("first_k_dense_replace"), list("mlp_only_layers"), list("mlp_layer_types")];
  const isDense = (n) => n < first || listed.includes(n) || (n + 1) % step !== 0;
  const dense = kinds.length ? kinds.filter((kind) => kind === "dense").length : eachLayer(layers, isDense).filter(Boolean).length;
  const expert = number("moe_intermediate_size") || mlp;
  if (get("enable_moe_block") === true) beside = mlp;
  if (beside % expert) throw new Error(`a shared expert of width ${beside} beside ${expert} is not counted here.`);
  return {
    experts,
    expert_width: expert,
    active_experts: number("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk", "top_k_experts") || 1,
    shared_experts: number("n_shared_experts", "num_shared_experts") || beside / expert || family.shared_experts || 0,
    dense_layers: dense,
    mlp_width: dense ? number("intermediate_size_mlp") || mlp : 0,
  };
}

const eachLayer = (layers, make) => Array.from({ length: layers }, (_, n) => make(n));

// full, window or recurrent of each layer.
function configKinds({ type, family, get, number, list }, layers, window) {
  const legal = configTable().kinds;
  let listed = list("layer_types").length ? list("layer_types") : list("layers_block_type");
  const among = (full) => eachLayer(layers, (n) => (full(n) ? "attention" : "mamba"));
  const softmax = list("attn_type_list");
  if (softmax.length) listed = softmax.map((one) => (one ? "attention" : "mamba"));
  const linear = (get("linear_attn_config") || {}).full_attn_layers;
  if (Array.isArray(linear)) listed = among((n) => linear.includes(n + 1)); // counted from 1
  const indices = list("attn_layer_indices");
  if (indices.length) listed = among((n) => indices.includes(n));
  if (listed.length) {
    if (listed.length !== layers) throw new Error(`the kinds of ${listed.length} layers are listed, of ${layers}.`);
    const strange = listed.find((name) => !Object.hasOwn(legal, name));
    if (strange !== undefined) throw new Error(`layers of the kind ${strange} are not counted here; known are ${Object.keys(legal).join(", ")}.`);
    return listed.map((name) => legal[name]);
  }
  if (family.attention === false) return eachLayer(layers, () => "recurrent");
  const interval = number("full_attention_interval") || family.full_every;
  if (interval) return eachLayer(layers, (n) => ((n + 1) % interval ? "recurrent" : "full"));
  if (family.recurrence) throw new Error(`layer_types: nothing says which layers of ${type} are recurrent.`);
  if (!window || get("use_sliding_window") === false) return eachLayer(layers, () => "full");
  if (get("use_sliding_window") === true) { // Qwen's: windows from a layer on
    return eachLayer(layers, (n) => (n < number("max_window_layers") ? "full" : "window"));
  }
  const every = number("sliding_window_pattern", "_sliding_window_pattern") || family.windows_every;
  return eachLayer(layers, (n) => (every && (n + 1) % every === 0 ? "full" : "window"));
}

function configLayers(config, model) {
  const window = config.number("sliding_window", "attention_chunk_size");
  const kinds = configKinds(config, model.layers, window);
  const full = kinds.filter((kind) => kind === "full").length;
  if (full === kinds.length) return {};
  const recurrent = kinds.includes("recurrent");
  if (recurrent && kinds.includes("window")) throw new Error("windows and recurrences in one model are not counted here.");
  if (!recurrent && !window) throw new Error("layers have windows, but no sliding_window says how long.");
  const every = full ? kinds.indexOf("full") + 1 : 0;
  const regular = every > 1 && kinds.every((kind, n) => (kind === "full") === ((n + 1) % every === 0));
  return {
    ...(recurrent ? recurrenceOf(config, model) : { window, chunked: !config.number("sliding_window") }),
    full_every: regular ? every : 0,
    full_count: regular ? 0 : full,
  };
}

// Numbers of the state and of the parameters of a recurrent layer.
function recurrenceOf(config, model) {
  const form = configTable().recurrences[config.family.recurrence];
  if (!form) throw new Error(`layers of ${config.type || "this model"} are recurrent, and their state is not known here.`);
  const named = configNames(config, model);
  const channels = sumOf(form.channels, named);
  const taps = typeof form.taps === "string" ? named(form.taps) : form.taps;
  return {
    recurrent_numbers: sumOf(form.state, named),
    convolution_numbers: channels * (taps - 1),
    recurrent_parameters: sumOf(form.parameters, (name) => ({ channels, taps })[name] ?? named(name)),
  };
}

// A function that gives a size of the model, or an entry of its config.json.
function configNames(config, model) {
  const known = {
    width: model.d_model,
    layers: model.layers,
    heads: model.num_heads,
    kv: numKvHeads(model),
    head: headWidth(model),
    indexers: model.index_layers || model.layers,
  };
  return (name) => {
    if (Object.hasOwn(known, name)) return known[name];
    const entry = config.get(name);
    if (typeof entry === "boolean") return Number(entry);
    if (entry === undefined || entry === null) throw new Error(`this config.json has no ${name}.`);
    return config.number(name);
  };
}

const sumOf = (terms, named) => terms.reduce((sum, term) => sum + term.reduce((product, n) => product * (typeof n === "string" ? named(n) : n), 1), 0);

function conditionalSum(config, part, model) {
  const named = configNames(config, model);
  return Object.entries(config.family[part] || {})
    .filter(([name]) => !name || config.get(name))
    .reduce((sum, [, terms]) => sum + sumOf(terms, named), 0);
}

function configBox(add) {
  const text = element("textarea", { id: "config-json", rows: "4", spellcheck: false, placeholder: '{"hidden_size": 4096, "num_hidden_layers": 32, …}' });
  const wrong = notice("config-error");
  const read = () => {
    try {
      add(modelOfConfig(text.value));
      const warning = configWarning(text.value);
      tell(wrong, warning ? new Error(warning) : null);
      text.value = "";
    } catch (error) {
      tell(wrong, error);
    }
  };
  const file = element("input", { type: "file", id: "config-file", accept: ".json,application/json", "aria-label": "Open a config.json", on: { change: async () => {
    if (file.files[0]) text.value = await file.files[0].text();
    file.value = "";
    read();
  } } });
  return element("details", { class: "group", id: "config-box" },
    element("summary", {}, "From a config.json"),
    labelled("Paste it", text, "Hugging Face's config.json of a decoder; it is read here and sent nowhere"),
    wrong,
    element("div", { class: "buttons" }, element("button", { type: "button", id: "config-add", on: { click: read } }, "Add this model"), file));
}
