// The form of one composition.

const BIT_LABELS = { 32: "32 (float)", 16: "16 (half)", 8: "8", 4: "4" };
const PART_BIT_LABELS = { 0: "as the other weights", 32: "32 (float)", 16: "16 (half)", 8: "8", 4.25: "4.25 (MXFP4)", 4: "4" };
const PROJECTION_LABELS = {
  Standard: "Standard: keys and values",
  Optimised: "Optimised: no value map",
  Efficient: "Efficient: keys and values are x",
  Latent: "Latent: keys and values are one map",
  MLA: "MLA: a latent, and a rotary key for all heads",
};
const KERNEL_LABELS = { Softmax: "Softmax", Elu: "Elu: sums, linear attention" };
const MIXING_LABELS = {
  NoMixing: "None",
  Alignment: "Alignment: Super Attention",
  ToeplitzAlignment: "Toeplitz: one filter",
};

const GROUPS = [
  ["Attention", true, [
    ["layers", "Layers", { min: 1 }],
    ["d_model", "Model width", { min: 1 }],
    ["num_heads", "Query heads", { min: 1 }],
    ["num_kv_heads", "KV heads", { or: (m) => m.num_heads, hint: "as many as query heads if empty" }],
    ["head_dim", "Head size", { or: (m) => Math.floor(m.d_model / m.num_heads), hint: "width / heads if empty" }],
    ["projections", "Projections", PROJECTION_LABELS],
  ]],
  ["Latent (MLA)", false, [
    ["rank", "Latent, numbers", {}],
    ["rotary_dim", "Rotary key, features", {}],
    ["value_dim", "Value size", { or: headWidth, hint: "the head size if empty" }],
    ["query_rank", "Latent of queries", { hint: "0 = none" }],
  ]],
  ["KV cache", true, [
    ["window", "Window", { hint: "latest tokens; 0 = all" }],
    ["sinks", "Sinks", { hint: "first tokens kept, too" }],
    ["full_every", "Full every n layers", { hint: "6 = five windows, one full; 0 = none" }],
    ["full_count", "Full layers", { hint: "if they follow no rule; 0 = by the rule" }],
    ["shared_layers", "Last layers without", { hint: "they read the cache of earlier ones" }],
    ["full_kv_heads", "KV heads of full layers", { hint: "0 = as in the others" }],
    ["full_head_dim", "Their head size", { hint: "0 = as in the others" }],
    ["index_dim", "Keys of an indexer", { hint: "numbers for each token; 0 = none" }],
    ["recurrent_numbers", "State of the others", { hint: "numbers, of Mamba or a delta rule; 0 = attention" }],
    ["convolution_numbers", "Their convolution", { hint: "numbers of the latest inputs that it keeps" }],
    ["recurrent_parameters", "Their parameters", { hint: "of one such layer, without its MLP" }],
    ["state_bits", "KV cache precision", BIT_LABELS],
  ]],
  ["Kernel and mixing", false, [
    ["kernel", "Kernel", KERNEL_LABELS],
    ["mixing", "Token mixing", MIXING_LABELS],
    ["mixing_size", "Its size", { hint: "longest input, or width; 0 = none" }],
  ]],
  ["Numbers and batch", true, [
    ["weight_bits", "Weight precision", BIT_LABELS],
    ["attention_bits", "of attention", PART_BIT_LABELS],
    ["expert_bits", "of experts", PART_BIT_LABELS],
    ["embedding_bits", "of embeddings", PART_BIT_LABELS],
    ["scale_group", "Weights of a scale", { hint: "in 8 and 4 bits; 0 = scales not counted" }],
    ["batch", "Batch size", { min: 1 }],
    ["chunk", "Prefill chunk", { hint: "tokens; 0 = the whole prompt" }],
  ]],
  ["Around the attention", false, [
    ["vocabulary", "Vocabulary", {}],
    ["mlp_width", "MLP width", {}],
    ["experts", "Experts", { hint: "0 = none" }],
    ["active_experts", "that read a token", {}],
    ["expert_width", "Width of one", {}],
    ["shared_experts", "Shared experts", {}],
    ["dense_layers", "First layers without", {}],
    ["trained", "Trained length", { hint: "tokens; 0 = unknown" }],
    ["positions", "Learned positions", {}],
    ["norms", "Norms in a block", {}],
    ["gated", "Gated MLP", null],
    ["tied", "Head tied to the embedding", null],
    ["rotary", "Rotary positions", null],
    ["gate", "Output gate", null],
    ["bias", "Biases in attention", null],
    ["mlp_bias", "Biases in the MLP", null],
    ["norm_bias", "Biases in the norms", null],
    ["qk_norm", "Norms of queries and keys", null],
  ]],
];

function compositionField(model, [name, label, about], changed) {
  const id = `model-${name}`;
  const set = (value) => {
    model[name] = value;
    changed();
  };
  if (about === null) return switchField(label, model[name], set, { id });
  if (about === BIT_LABELS || about === PART_BIT_LABELS) {
    const labels = { ...about, [model[name]]: about[model[name]] ?? `${Number(model[name].toFixed(2))} (of its files)` };
    return choiceField(label, labels, model[name], (value) => set(Number(value)), { id });
  }
  if (about.or) {
    // 0 stands for a number that follows from others: show that number as what is taken
    const field = numberField(label, model[name] || "", (value, words) => set(words.trim() ? value : 0), { ...about, id, optional: true });
    field.querySelector("input").placeholder = String(about.or(model));
    return field;
  }
  if (typeof about.min === "number" || about.hint || !Object.keys(about).length) {
    return numberField(label, model[name], set, { ...about, id });
  }
  return choiceField(label, about, model[name], set, { id });
}

function compositionForm(model, changed, renamed) {
  const name = element("input", {
    type: "text",
    id: "model-name",
    maxlength: "60",
    autocomplete: "off",
    on: {
      input: () => {
        model.name = name.value || "model";
        renamed();
      },
    },
  });
  name.value = model.name;
  return [
    labelled("Name", name),
    GROUPS.map(([title, open, fields]) =>
      element(
        "details",
        { class: "group", open: open && innerWidth > 640 },
        element("summary", {}, title),
        element("div", { class: "grid" }, fields.map((field) => compositionField(model, field, changed))),
      ),
    ),
  ];
}
