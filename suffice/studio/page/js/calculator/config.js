// A model from the config.json that lies beside published weights.

const LONGEST_CONFIG = 200000; // characters

function modelOfConfig(text) {
  if (text.length > LONGEST_CONFIG) throw new Error("that is too long for a config.json; paste the file alone.");
  let config;
  try {
    config = JSON.parse(text);
  } catch (error) {
    throw new Error("that is no JSON; paste a whole config.json, from { to }.");
  }
  if (typeof config !== "object" || config === null || Array.isArray(config)) {
    throw new Error("a config.json is an object; paste all of it, from { to }.");
  }
  const outer = config;
  for (const name of ["text_config", "llm_config", "language_config"]) {
    if (config[name] && typeof config[name] === "object") config = { ...config, ...config[name] };
  }
  refuseConfig(config);
  const number = (...names) => {
    for (const name of names) {
      const value = config[name];
      if (Number.isInteger(value) && value >= 0 && value <= LARGEST_SIZE) return value;
    }
    return null;
  };
  const d_model = number("hidden_size", "n_embd", "d_model", "dim");
  const layers = number("num_hidden_layers", "n_layer", "n_layers", "num_layers");
  const num_heads = number("num_attention_heads", "n_head", "n_heads", "num_heads");
  const missing = Object.entries({ hidden_size: d_model, num_hidden_layers: layers, num_attention_heads: num_heads })
    .filter(([, value]) => !value)
    .map(([name]) => name);
  if (missing.length) throw new Error(`this config.json has no ${missing.join(", no ")}; it is of no decoder that is known here.`);
  const type = String(config.model_type || "");
  const plain = type.startsWith("gpt2");
  const delta = DELTA.test(type);
  const model = {
    name: configName(outer, config),
    d_model,
    layers,
    num_heads,
    ...configAttention(config, number, num_heads),
    ...configLayers(config, number, layers, d_model, num_heads),
    ...configExperts(config, number),
    vocabulary: number("vocab_size") || 0,
    tied: typeof config.tie_word_embeddings === "boolean" ? config.tie_word_embeddings : plain || configTies(config),
    trained: number("max_position_embeddings", "n_positions", "max_seq_len") || 0,
    gate: delta && config.attn_output_gate !== false,
    bias: Boolean(config.attention_bias || config.qkv_bias) || plain,
    mlp_bias: Boolean(config.mlp_bias) || plain || isGptOss(config),
    norm_bias: plain,
    gated: !plain,
    positions: plain ? number("n_positions") || 0 : 0,
    rotary: !plain,
    norms: /^(gemma[23]|glm4$)/.test(type) ? 4 : 2,
    qk_norm: delta || /^(qwen3|gemma3|olmo2)/.test(type) || (type === "glm4_moe" && config.use_qk_norm === true),
  };
  if (!model.mlp_width && !model.experts) model.mlp_width = 4 * d_model;
  const half = { float32: 32, bfloat16: 16, float16: 16 }[config.torch_dtype || config.dtype];
  const mxfp4 = (config.quantization_config || {}).quant_method === "mxfp4";
  return { ...model, ...(half ? { weight_bits: half } : {}), ...(mxfp4 ? { expert_bits: 4.25 } : {}) };
}

// Families whose layers are counted as they are; of any other a line says so.
const FAMILIES = /^(llama|llama4_text|mistral|mixtral|ministral|qwen[23](_moe)?|qwen3_next|qwen3_5(_moe)?(_text)?|gemma[23]?|gemma3_text|phi3?|gpt2|gpt_oss|deepseek_v[23]|kimi_k2|olmo2?|smollm3|granite|granitemoehybrid|glm|glm4|glm4_moe|minimax(_m[12]|_text_01)?)$/i;
const ENCODERS = /^(bert|roberta|xlm-roberta|distilbert|electra|albert|deberta|modernbert|mpnet|nomic|vit|clip|siglip|whisper|t5|mt5|bart|mbart|marian)/i;
const DELTA = /^qwen3_(next|5)/;
// keys that only models with recurrent layers have
const RECURRENT = /mamba|ssm|rwkv|recurr|lru_width|hybrid|conv_L_cache|linear_attn|linear_num|attn_type_list|attn_layer_period/;

function refuseConfig(config) {
  const type = String(config.model_type || "");
  if (config.is_encoder_decoder === true || ENCODERS.test(type)) {
    throw new Error(`${type || "this"} is no decoder: it keeps no KV cache between tokens; give the config.json of a decoder.`);
  }
  if (config.num_kv_shared_layers > 0 || config.hidden_size_per_layer_input > 0) {
    throw new Error(`some layers of ${type} share the cache of others or have inputs of their own, which is not counted here (num_kv_shared_layers, hidden_size_per_layer_input).`);
  }
  if (config.index_topk > 0 || config.index_head_dim > 0) {
    throw new Error(`${type} caches the keys of an indexer beside the latent, which is not counted here (index_head_dim).`);
  }
  for (const name of ["intermediate_size", "num_attention_heads", "num_key_value_heads"]) {
    if (Array.isArray(config[name])) throw new Error(`${name} is a list: layers of different widths are not counted here.`);
  }
  if (config.decoder_sparse_step > 1 || config.interleave_moe_layer_step > 1 || (config.mlp_only_layers || []).length) {
    throw new Error("experts and MLPs alternate (decoder_sparse_step, interleave_moe_layer_step, mlp_only_layers), which is not counted here.");
  }
  const named = Object.keys(config).find((name) => RECURRENT.test(name));
  if (named && !DELTA.test(type) && !MAMBA2.test(type) && !LIGHTNING.test(type)) {
    throw new Error(`${named} says that layers of ${type || "this model"} are no attention; their state is not known here.`);
  }
}

// A line about a model whose family is not known; empty for others.
function configWarning(text) {
  const config = JSON.parse(text);
  const inner = config.text_config || config.llm_config || config.language_config || {};
  const type = String(inner.model_type || config.model_type || "");
  if (FAMILIES.test(type)) return "";
  return `${type ? `The family ${type} is` : "A config.json without model_type is"} not known here and was counted as a plain decoder: check the layers, norms and biases below.`;
}

const isGptOss = (config) => config.model_type === "gpt_oss";

// Families whose configurations leave the tie out because it is the default.
const configTies = (config) => /^(gemma|gpt2)/.test(config.model_type || "");

function configName(outer, config) {
  const path = outer._name_or_path || config._name_or_path;
  return String(path || config.model_type || "from config.json").split("/").pop().slice(0, 60) || "from config.json";
}

function configAttention(config, number, heads) {
  const rank = number("kv_lora_rank");
  if (rank) {
    return {
      projections: "MLA",
      rank,
      rotary_dim: number("qk_rope_head_dim") || 0,
      head_dim: number("qk_nope_head_dim") || 0,
      value_dim: number("v_head_dim") || 0,
      query_rank: number("q_lora_rank") || 0,
    };
  }
  const shared = number("num_key_value_heads", "n_kv_heads", "num_kv_heads");
  return {
    num_kv_heads: config.multi_query === true ? 1 : shared && shared !== heads ? shared : 0,
    head_dim: number("head_dim") || 0,
  };
}

// The layers by kind: full attention, windows or a recurrence.
const LAYER_KINDS = { full_attention: "full", attention: "full", sliding_attention: "window", chunked_attention: "window", linear_attention: "recurrent", mamba: "recurrent" };
const MAMBA2 = /^granitemoehybrid/;
const LIGHTNING = /^minimax(_m1|_text_01)?$/i;

function layerNames(config, number, layers) {
  if (Array.isArray(config.layer_types)) return config.layer_types;
  if (Array.isArray(config.attn_type_list)) return config.attn_type_list.map((softmax) => (softmax ? "full_attention" : "linear_attention"));
  const every = number("full_attention_interval") || (DELTA.test(config.model_type || "") ? 4 : 0);
  if (!every) return [];
  return Array.from({ length: layers }, (_, n) => ((n + 1) % every ? "linear_attention" : "full_attention"));
}

function configLayers(config, number, layers, width, heads) {
  const type = String(config.model_type || "");
  const window = number("sliding_window", "attention_chunk_size");
  const names = layerNames(config, number, layers);
  if (!names.length) {
    if (!window || config.use_sliding_window === false) return { window: 0, full_every: 0 };
    const usual = { gemma2: 2, gpt_oss: 2, gemma3: 6, gemma3_text: 6, cohere2: 4, llama4_text: 4 }[type] || 0;
    return { window, full_every: number("sliding_window_pattern", "_sliding_window_pattern") || usual };
  }
  if (names.length !== layers) throw new Error(`the kinds of ${names.length} layers are listed, but there are ${layers}.`);
  const strange = names.find((name) => !LAYER_KINDS[name]);
  if (strange) throw new Error(`layers of the kind ${strange} are not counted here; known are ${Object.keys(LAYER_KINDS).join(", ")}.`);
  const kinds = names.map((name) => LAYER_KINDS[name]);
  const full = kinds.filter((kind) => kind === "full").length;
  if (full === layers) return { window: 0, full_every: 0 };
  const recurrent = kinds.includes("recurrent");
  if (recurrent && kinds.includes("window")) throw new Error("windows and recurrences in one model are not counted here.");
  if (!recurrent && !window) throw new Error("layers have windows, but no sliding_window says how long.");
  const rest = recurrent ? { window: 0, ...recurrenceOf(config, number, type, width, heads) } : { window };
  if (!full) return { ...rest, full_every: 0 };
  const every = kinds.indexOf("full") + 1;
  const regular = every > 1 && kinds.every((kind, n) => (kind === "full") === ((n + 1) % every === 0));
  return regular ? { ...rest, full_every: every } : { ...rest, full_every: 0, full_count: full };
}

// Numbers of the state and of the parameters of a recurrent layer, as transformers' classes have them.
function recurrenceOf(config, number, type, width, heads) {
  const read = (...names) => {
    const value = number(...names);
    if (value === null) throw new Error(`this config.json has no ${names[0]}, so the state of its recurrent layers is unknown.`);
    return value;
  };
  if (DELTA.test(type)) {
    const [valueHeads, keyWidth, valueWidth] = [read("linear_num_value_heads"), read("linear_key_head_dim"), read("linear_value_head_dim")];
    const [keys, values] = [read("linear_num_key_heads") * keyWidth, valueHeads * valueWidth];
    const [mixed, kernel] = [2 * keys + values, read("linear_conv_kernel_dim")];
    const maps = width * (mixed + values + 2 * valueHeads) + values * width;
    return {
      recurrent_numbers: valueHeads * keyWidth * valueWidth + mixed * kernel,
      recurrent_parameters: maps + mixed * kernel + 2 * valueHeads + valueWidth,
    };
  }
  if (MAMBA2.test(type)) {
    const [ssm, size, kernel] = [read("mamba_n_heads"), read("mamba_d_state"), read("mamba_d_conv")];
    const inner = read("mamba_expand") * width;
    const mixed = inner + 2 * read("mamba_n_groups") * size;
    const biases = (config.mamba_conv_bias === false ? 0 : mixed) + (config.mamba_proj_bias ? inner + mixed + ssm + width : 0);
    return {
      recurrent_numbers: inner * size + mixed * kernel,
      recurrent_parameters: width * (inner + mixed + ssm) + mixed * kernel + biases + 3 * ssm + inner + inner * width,
    };
  }
  if (LIGHTNING.test(type)) {
    const head = number("head_dim") || Math.floor(width / heads);
    const inner = heads * head;
    return { recurrent_numbers: inner * head, recurrent_parameters: 5 * width * inner + inner };
  }
  throw new Error(`layers of ${type || "this model"} are recurrent, and their state is not known here.`);
}

function configExperts(config, number) {
  const experts = number("num_experts", "n_routed_experts", "num_local_experts") || 0;
  const width = number("intermediate_size", "n_inner", "ffn_dim", "hidden_dim") || 0;
  const beside = number("shared_intermediate_size", "shared_expert_intermediate_size") || 0;
  if (experts < 2) return { mlp_width: beside || width };
  const dense = number("first_k_dense_replace") || 0;
  const expert = number("moe_intermediate_size") || width;
  if (beside % expert) throw new Error(`shared experts of width ${beside} beside experts of ${expert} are not counted here.`);
  const llama4 = config.model_type === "llama4_text" ? 1 : 0;
  return {
    experts,
    expert_width: expert,
    active_experts: number("num_experts_per_tok", "experts_per_token", "moe_topk") || 1,
    shared_experts: number("n_shared_experts") || beside / expert || llama4,
    dense_layers: dense,
    mlp_width: dense ? width : 0,
  };
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
