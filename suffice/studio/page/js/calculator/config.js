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
  const plain = String(config.model_type || "").startsWith("gpt2");
  const model = {
    name: configName(outer, config),
    d_model,
    layers,
    num_heads,
    ...configAttention(config, number, num_heads),
    ...configWindow(config, number, layers),
    ...configExperts(config, number),
    vocabulary: number("vocab_size") || 0,
    tied: typeof config.tie_word_embeddings === "boolean" ? config.tie_word_embeddings : plain || configTies(config),
    trained: number("max_position_embeddings", "n_positions", "max_seq_len") || 0,
    bias: Boolean(config.attention_bias || config.qkv_bias) || plain,
    mlp_bias: Boolean(config.mlp_bias) || plain || isGptOss(config),
    norm_bias: plain,
    gated: !plain,
    positions: plain ? number("n_positions") || 0 : 0,
    rotary: !plain,
    norms: /^gemma[23]/.test(config.model_type || "") ? 4 : 2,
    qk_norm: /^(qwen3|gemma3|olmo2)/.test(config.model_type || ""),
  };
  if (!model.mlp_width && !model.experts) model.mlp_width = 4 * d_model;
  const half = { float32: 32, bfloat16: 16, float16: 16 }[config.torch_dtype || config.dtype];
  return { ...model, ...(half ? { weight_bits: half } : {}) };
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

// A window, and how often a layer without one stands between.
function configWindow(config, number, layers) {
  const window = number("sliding_window");
  if (!window || config.use_sliding_window === false) return { window: 0, full_every: 0 };
  const kinds = Array.isArray(config.layer_types) ? config.layer_types : [];
  const every = number("sliding_window_pattern", "_sliding_window_pattern");
  if (every) return { window, full_every: every };
  const first = kinds.indexOf("full_attention");
  if (kinds.length && first < 0) return { window, full_every: 0 };
  if (kinds.length) {
    const regular = kinds.every((kind, n) => (kind === "full_attention") === ((n + 1) % (first + 1) === 0));
    if (!regular) throw new Error("its layer_types alternate without a rule that can be entered here.");
    return first === 0 ? { window: 0, full_every: 0 } : { window, full_every: first + 1 };
  }
  return { window, full_every: /^gemma3/.test(config.model_type || "") ? 6 : 0, layers };
}

function configExperts(config, number) {
  const experts = number("num_experts", "n_routed_experts", "num_local_experts") || 0;
  const width = number("intermediate_size", "n_inner", "ffn_dim", "hidden_dim") || 0;
  if (experts < 2) return { mlp_width: width };
  const dense = number("first_k_dense_replace") || 0;
  return {
    experts,
    expert_width: number("moe_intermediate_size") || width,
    active_experts: number("num_experts_per_tok", "experts_per_token", "moe_topk") || 1,
    shared_experts: number("n_shared_experts") || 0,
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
      tell(wrong, null);
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
