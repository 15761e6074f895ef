"""DeepSeek-V3 of transformers: multi-head latent attention and mixtures of experts."""

from __future__ import annotations

from suffice.encoders import MLA
from suffice.models.architectures.architecture import (
    Architecture,
    ConfigReader,
    Row,
    Specs,
    TensorMapping,
    map_rows,
)
from suffice.models.architectures.decoders import (
    BODY_ROWS,
    MLP_ROWS,
    NORMS,
    OUTPUT_ROWS,
    QKV_ROWS,
    block_rows,
)
from suffice.models.architectures.experts import DEEPSEEK
from suffice.models.architectures.rope import (
    longest_text,
    read_rope,
    rope_entries,
    rope_type,
    yarn_mscales,
)
from suffice.models.lm import LM, LMConfig
from suffice.patterns import Causal
from suffice.spec import AttentionSpec


def _read(reader: ConfigReader) -> tuple[LMConfig, Specs]:
    reader.one_of("is_causal", True)
    reader.one_of("hidden_act", "silu")
    width, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    reader.one_of("num_key_value_heads", heads)
    content = reader.size("qk_nope_head_dim", 128)
    rotary = reader.size("qk_rope_head_dim", 64)
    experts = DEEPSEEK.read(reader)
    depth = reader.depth("num_hidden_layers")
    all_dense = len(experts.dense) == depth
    config = LMConfig(
        vocabulary_size=reader.size("vocab_size"),
        length=longest_text(reader),
        d_model=width,
        depth=depth,
        mlp_width=reader.size("intermediate_size", 18432) if experts.dense else experts.width,
        activation="swiglu",
        norm="rms",
        eps=reader.number("rms_norm_eps", 1e-6),
        positions="none",
        bias=False,
        tied=reader.flag("tie_word_embeddings"),
        experts=None if all_dense else experts,
    )
    # a null rank means one map of the input; an entry that is missing, the default of their class
    query_rank = reader.entries.get("q_lora_rank", 1536)
    encoder = MLA(
        rank=reader.size("kv_lora_rank", 512),
        rotary_dim=rotary,
        value_dim=reader.size("v_head_dim", 128),
        query_rank=None if query_rank is None else reader.size("q_lora_rank", query_rank),
    )
    interleaved = reader.flag("rope_interleave", default=True)
    spec = AttentionSpec(
        d_model=width,
        num_heads=heads,
        head_dim=content,
        pattern=Causal(),
        encoder=encoder,
        position=read_rope(reader, rotary, "interleaved" if interleaved else "half"),
        bias=reader.flag("attention_bias"),
        scale=_scale(reader, content + rotary),
    )
    return config, spec


def _scale(reader: ConfigReader, key_width: int) -> float | None:
    """Return the factor of the scores, which grows with the stretch of YaRN; None: the usual."""
    rope, nested = rope_entries(reader)
    mscales = None if rope_type(nested) == "default" else yarn_mscales(rope)
    return None if mscales is None else key_width**-0.5 * mscales[1] ** 2


ROWS: list[Row] = [
    *BODY_ROWS,
    *QKV_ROWS,
    *OUTPUT_ROWS,
    *MLP_ROWS,
    *block_rows("model.layers.*", "blocks.*", NORMS["pre"]),
    *block_rows(
        "model.layers.*.self_attn",
        "blocks.*.attention",
        "q_a_proj:q_a_proj q_a_layernorm:q_a_norm q_b_proj:q_b_proj kv_a_proj_with_mqa:kv_a_proj "
        "kv_a_layernorm:kv_a_norm kv_b_proj:kv_b_proj",
    ),
    *DEEPSEEK.rows,
]


def _mappings(lm: LM, _reader: ConfigReader) -> list[TensorMapping]:
    return map_rows(ROWS, lm, without_bias=(".q_proj", ".q_b_proj"))


DEEPSEEK_V3 = Architecture(
    model_type="deepseek_v3",
    class_name="DeepseekV3ForCausalLM",
    bare_name="DeepseekV3Model",
    sizes=_read,
    mappings=_mappings,
    prefix="model.",
    derived=(".rotary_emb.inv_freq",),
    drafts="num_nextn_predict_layers",
)
