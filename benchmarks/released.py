"""Architectures of transformers that are read: our logits beside those of its own classes.

Run: python -m benchmarks.released [--only NAME]

Each case is a tiny model with drawn weights, one for each thing that differs. It is saved by
transformers and read here. The table has the largest difference of logits and its share of the
largest logit, whether 12 greedy tokens are equal, the largest difference between a whole text and
the same one streamed in pieces, and that after all weights were changed here, written back and
read by transformers. Exit code 1 if a share is above 1e-4 or tokens differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers as t
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.report import CONSOLE, print_machine
from suffice.convert.sources import open_source, tensors_for
from suffice.models import LM
from suffice.testing import drawn, normal

MOST = 1e-4
NEW = 12  # tokens; with the given 20 no more than the original length of longrope

TEXT = {
    "vocab_size": 37,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = TEXT | {"num_key_value_heads": 2}
DEEPSEEK = TEXT | {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 20,
    "n_routed_experts": 9,
    "n_group": 3,
    "topk_group": 2,
    "num_experts_per_tok": 4,
    "q_lora_rank": 14,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
}
QWEN3_5 = GROUPED | {
    "num_hidden_layers": 4,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 6,
}
MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODERN = TEXT | MARKS | {"num_hidden_layers": 4, "local_attention": 6}
MODERN |= {"cls_token_id": 1, "sep_token_id": 2}
EURO = GROUPED | MARKS
OLD = {"vocab_size": 37, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64}
DISTILLED = {
    "vocab_size": 37,
    "dim": 32,
    "n_heads": 4,
    "n_layers": 2,
    "hidden_dim": 48,
    "max_position_embeddings": 64,
}
PICTURE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 5,
}


def _turning(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **more}}


def cases():
    """Return the class and configuration of each case."""
    stretched = {"factor": 4.0, "original_max_position_embeddings": 16}
    blended = stretched | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama, gpt2 = t.LlamaForCausalLM, t.GPT2LMHeadModel
    marked = {"bos_token_id": 1, "eos_token_id": 2}
    biased = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    return {
        "llama": (llama, t.LlamaConfig(**TEXT)),
        "llama-grouped": (llama, t.LlamaConfig(**GROUPED)),
        "llama-biased-wide-tied": (llama, t.LlamaConfig(**GROUPED, head_dim=12, **biased)),
        "llama-linear": (llama, t.LlamaConfig(**GROUPED, **_turning("linear", factor=4.0))),
        "llama-llama3": (llama, t.LlamaConfig(**GROUPED, **_turning("llama3", **blended))),
        "llama-yarn": (llama, t.LlamaConfig(**GROUPED, **_turning("yarn", **stretched))),
        "llama-dynamic": (llama, t.LlamaConfig(**GROUPED, **_turning("dynamic", factor=2.0))),
        "llama-longrope": (
            llama,
            t.LlamaConfig(
                **GROUPED,
                **_turning(
                    "longrope",
                    factor=2.0,
                    short_factor=[1.0, 1.5, 2.5, 4.0],
                    long_factor=[2.0, 3.0, 5.0, 8.0],
                    original_max_position_embeddings=32,
                ),
            ),
        ),
        "granite": (
            t.GraniteForCausalLM,
            t.GraniteConfig(
                **GROUPED,
                attention_multiplier=0.2,
                embedding_multiplier=3.0,
                residual_multiplier=0.7,
                logits_scaling=2.5,
            ),
        ),
        "granite-biased-tied": (
            t.GraniteForCausalLM,
            t.GraniteConfig(
                **GROUPED,
                **biased,
                embedding_multiplier=3.0,
                residual_multiplier=0.7,
                logits_scaling=2.5,
            ),
        ),
        "granite_swa": (
            t.GraniteSWAForCausalLM,
            t.GraniteSWAConfig(
                **GROUPED | {"num_hidden_layers": 5},
                attention_multiplier=0.2,
                embedding_multiplier=3.0,
                residual_multiplier=0.7,
                logits_scaling=2.5,
                sliding_window=5,
                layer_rope_theta=[0, 50.0, 200.0, 50.0, 0],
                attn_implementation="eager",
            ),
        ),
        "granite_swa-biased-untied": (
            t.GraniteSWAForCausalLM,
            t.GraniteSWAConfig(
                **GROUPED,
                **biased | {"tie_word_embeddings": False},
                layer_types=["sliding_attention", "full_attention"],
                sliding_window=4,
                attn_implementation="eager",
            ),
        ),
        "gemma": (t.GemmaForCausalLM, t.GemmaConfig(**GROUPED, head_dim=12)),
        "gemma-biased-untied": (
            t.GemmaForCausalLM,
            t.GemmaConfig(
                **GROUPED,
                head_dim=8,
                attention_bias=True,
                tie_word_embeddings=False,
                hidden_act="gelu",
                rms_norm_eps=1e-2,
            ),
        ),
        "gemma2": (
            t.Gemma2ForCausalLM,
            t.Gemma2Config(
                **GROUPED,
                head_dim=12,
                sliding_window=5,
                query_pre_attn_scalar=7,
                attn_logit_softcapping=1.5,
                final_logit_softcapping=2.0,
                attn_implementation="eager",
            ),
        ),
        "gemma2-uncapped-biased": (
            t.Gemma2ForCausalLM,
            t.Gemma2Config(
                **GROUPED,
                head_dim=8,
                sliding_window=4,
                attn_logit_softcapping=None,
                final_logit_softcapping=None,
                attention_bias=True,
                tie_word_embeddings=False,
                layer_types=["full_attention", "sliding_attention"],
            ),
        ),
        "gemma3": (
            t.Gemma3ForCausalLM,
            t.Gemma3TextConfig(
                **GROUPED | {"num_hidden_layers": 7},
                head_dim=12,
                sliding_window=5,
                query_pre_attn_scalar=7,
                rope_parameters={
                    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
                },
            ),
        ),
        "gemma3-capped": (
            t.Gemma3ForCausalLM,
            t.Gemma3TextConfig(
                **GROUPED,
                head_dim=8,
                sliding_window=5,
                final_logit_softcapping=2.0,
                sliding_window_pattern=2,
            ),
        ),
        "mistral": (t.MistralForCausalLM, t.MistralConfig(**GROUPED, sliding_window=5)),
        "qwen2": (t.Qwen2ForCausalLM, t.Qwen2Config(**GROUPED)),
        "qwen2-windows": (
            t.Qwen2ForCausalLM,
            t.Qwen2Config(
                **GROUPED, use_sliding_window=True, sliding_window=5, max_window_layers=1
            ),
        ),
        "qwen3": (t.Qwen3ForCausalLM, t.Qwen3Config(**GROUPED, head_dim=12)),
        "qwen3-biased-windows-tied": (
            t.Qwen3ForCausalLM,
            t.Qwen3Config(
                **GROUPED,
                head_dim=8,
                attention_bias=True,
                tie_word_embeddings=True,
                use_sliding_window=True,
                sliding_window=5,
                max_window_layers=1,
                rms_norm_eps=1e-2,
            ),
        ),
        "stablelm": (t.StableLmForCausalLM, t.StableLmConfig(**GROUPED, use_qkv_bias=True)),
        "stablelm-norms": (
            t.StableLmForCausalLM,
            t.StableLmConfig(**GROUPED, qk_layernorm=True, use_parallel_residual=True),
        ),
        "stablelm-parallel": (
            t.StableLmForCausalLM,
            t.StableLmConfig(**GROUPED, use_parallel_residual=True, layer_norm_eps=1e-2),
        ),
        "olmo2": (t.Olmo2ForCausalLM, t.Olmo2Config(**GROUPED, **MARKS)),
        "olmo2-biased-tied": (
            t.Olmo2ForCausalLM,
            t.Olmo2Config(
                **GROUPED,
                **MARKS,
                attention_bias=True,
                tie_word_embeddings=True,
                rms_norm_eps=1e-2,
                **_turning("linear", factor=4.0),
            ),
        ),
        "cohere": (t.CohereForCausalLM, t.CohereConfig(**GROUPED, **MARKS, logit_scale=0.7)),
        "cohere-biased-untied": (
            t.CohereForCausalLM,
            t.CohereConfig(
                **GROUPED,
                **MARKS,
                attention_bias=True,
                tie_word_embeddings=False,
                layer_norm_eps=1e-2,
                **_turning("linear", factor=4.0),
            ),
        ),
        "cohere-normed": (
            t.CohereForCausalLM,
            t.CohereConfig(**GROUPED, **MARKS, use_qk_norm=True, layer_norm_eps=1e-2),
        ),
        "cohere2": (
            t.Cohere2ForCausalLM,
            t.Cohere2Config(**GROUPED | {"num_hidden_layers": 5}, **MARKS, sliding_window=5),
        ),
        "cohere2-listed": (
            t.Cohere2ForCausalLM,
            t.Cohere2Config(
                **GROUPED,
                **MARKS,
                sliding_window=3,
                layer_types=["full_attention", "sliding_attention"],
                tie_word_embeddings=False,
            ),
        ),
        "gpt_oss": (
            t.GptOssForCausalLM,
            t.GptOssConfig(
                **GROUPED | {"num_hidden_layers": 3},
                **MARKS,
                head_dim=12,
                num_local_experts=5,
                num_experts_per_tok=3,
                sliding_window=5,
                swiglu_limit=0.5,
                **_turning("yarn", **stretched, truncate=False, beta_fast=4.0),
            ),
        ),
        "gpt_oss-defaults": (
            t.GptOssForCausalLM,
            t.GptOssConfig(**GROUPED, head_dim=8, num_local_experts=4),
        ),
        "gpt_oss-listed-unbiased-tied": (
            t.GptOssForCausalLM,
            t.GptOssConfig(
                **GROUPED,
                head_dim=8,
                attention_bias=False,
                tie_word_embeddings=True,
                num_local_experts=4,
                num_experts_per_tok=1,
                swiglu_alpha=0.9,
                swiglu_limit=1.0,
                layer_types=["full_attention", "sliding_attention"],
                sliding_window=3,
                rms_norm_eps=1e-2,
                **_turning("default"),
            ),
        ),
        "mixtral": (t.MixtralForCausalLM, t.MixtralConfig(**GROUPED, num_local_experts=4)),
        "mixtral-windows": (
            t.MixtralForCausalLM,
            t.MixtralConfig(
                **GROUPED,
                head_dim=12,
                num_local_experts=5,
                num_experts_per_tok=3,
                sliding_window=5,
                tie_word_embeddings=True,
                rms_norm_eps=1e-2,
            ),
        ),
        "qwen3_moe": (
            t.Qwen3MoeForCausalLM,
            t.Qwen3MoeConfig(
                **GROUPED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24
            ),
        ),
        "qwen3_moe-some-dense": (
            t.Qwen3MoeForCausalLM,
            t.Qwen3MoeConfig(
                **GROUPED | {"num_hidden_layers": 5},
                head_dim=12,
                attention_bias=True,
                num_experts=4,
                num_experts_per_tok=3,
                moe_intermediate_size=24,
                norm_topk_prob=True,
                mlp_only_layers=[3],
                decoder_sparse_step=2,
                use_sliding_window=True,
                sliding_window=5,
            ),
        ),
        "deepseek_v3": (t.DeepseekV3ForCausalLM, t.DeepseekV3Config(**DEEPSEEK)),
        "deepseek_v3-yarn-biased": (
            t.DeepseekV3ForCausalLM,
            t.DeepseekV3Config(
                **DEEPSEEK
                | {"q_lora_rank": None, "n_shared_experts": 2, "first_k_dense_replace": 0},
                attention_bias=True,
                norm_topk_prob=False,
                routed_scaling_factor=0.7,
                rope_interleave=False,
                tie_word_embeddings=True,
                rms_norm_eps=1e-2,
                **_turning("yarn", **stretched, beta_fast=4.0, mscale=1.5, mscale_all_dim=0.8),
            ),
        ),
        "deepseek_v3-dense-yarn": (
            t.DeepseekV3ForCausalLM,
            t.DeepseekV3Config(
                **DEEPSEEK | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 9},
                **_turning("yarn", **stretched, attention_factor=1.3),
            ),
        ),
        "deepseek_v3-one-group": (
            t.DeepseekV3ForCausalLM,
            t.DeepseekV3Config(**DEEPSEEK | {"n_group": 1, "topk_group": 1}),
        ),
        "qwen3_5": (t.Qwen3_5ForCausalLM, t.Qwen3_5TextConfig(**QWEN3_5)),
        "qwen3_5-biased-tied": (
            t.Qwen3_5ForCausalLM,
            t.Qwen3_5TextConfig(
                **QWEN3_5 | {"linear_num_key_heads": 3, "linear_num_value_heads": 3},
                layer_types=["full_attention"] + 2 * ["linear_attention"] + ["full_attention"],
                linear_conv_kernel_dim=3,
                attention_bias=True,
                tie_word_embeddings=True,
                rms_norm_eps=1e-2,
                **_turning("linear", factor=4.0, partial_rotary_factor=0.5),
            ),
        ),
        "qwen3_next-dense": (
            t.Qwen3NextForCausalLM,
            t.Qwen3NextConfig(
                **QWEN3_5 | {"linear_num_value_heads": 6, "mlp_only_layers": [0, 1, 2, 3]},
                rms_norm_eps=1e-2,
            ),
        ),
        "qwen3_next-no-experts-biased-tied": (
            t.Qwen3NextForCausalLM,
            t.Qwen3NextConfig(
                **QWEN3_5,
                num_experts=0,
                attention_bias=True,
                tie_word_embeddings=True,
                linear_conv_kernel_dim=2,
                layer_types=2 * ["linear_attention", "full_attention"],
                rms_norm_eps=1e-2,
            ),
        ),
        "gpt_neox": (t.GPTNeoXForCausalLM, t.GPTNeoXConfig(**TEXT, **MARKS)),
        "gpt_neox-in-turn-unbiased-tied": (
            t.GPTNeoXForCausalLM,
            t.GPTNeoXConfig(
                **TEXT,
                **MARKS,
                attention_bias=False,
                hidden_act="gelu_new",
                layer_norm_eps=1e-2,
                tie_word_embeddings=True,
                use_parallel_residual=False,
                **_turning("linear", factor=4.0, partial_rotary_factor=0.5),
            ),
        ),
        "phi": (t.PhiForCausalLM, t.PhiConfig(**TEXT, **MARKS)),
        "phi-grouped-relu": (
            t.PhiForCausalLM,
            t.PhiConfig(
                **GROUPED,
                **MARKS,
                hidden_act="relu",
                layer_norm_eps=1e-2,
                **_turning("default", partial_rotary_factor=0.25),
            ),
        ),
        "helium": (t.HeliumForCausalLM, t.HeliumConfig(**GROUPED, head_dim=8)),
        "smollm3": (
            t.SmolLM3ForCausalLM,
            t.SmolLM3Config(**GROUPED, **MARKS, no_rope_layers=[1, 0]),
        ),
        "phi3": (
            t.Phi3ForCausalLM,
            t.Phi3Config(**GROUPED, **MARKS, **_turning("default", partial_rotary_factor=0.5)),
        ),
        "phi3-longrope": (
            t.Phi3ForCausalLM,
            t.Phi3Config(
                **GROUPED,
                **MARKS,
                original_max_position_embeddings=32,
                **_turning(
                    "longrope",
                    partial_rotary_factor=0.5,
                    short_factor=[1.0, 3.0],
                    long_factor=[2.0, 6.0],
                ),
            ),
        ),
        "gpt2": (gpt2, t.GPT2Config(**OLD, **marked)),
        "gpt2-scaled": (
            gpt2,
            t.GPT2Config(
                **OLD,
                **marked,
                scale_attn_by_inverse_layer_idx=True,
                scale_attn_weights=False,
                tie_word_embeddings=False,
                n_inner=40,
            ),
        ),
        "bert": (t.BertForSequenceClassification, t.BertConfig(**TEXT, num_labels=3)),
        "bert-bare": (t.BertModel, t.BertConfig(**TEXT)),
        "roberta": (t.RobertaForSequenceClassification, t.RobertaConfig(**TEXT, num_labels=3)),
        "roberta-relu": (
            t.RobertaForSequenceClassification,
            t.RobertaConfig(
                **TEXT | {"type_vocab_size": 1},
                pad_token_id=0,
                hidden_act="relu",
                layer_norm_eps=1e-2,
            ),
        ),
        "roberta-bare": (t.RobertaModel, t.RobertaConfig(**TEXT)),
        "electra": (
            t.ElectraForSequenceClassification,
            t.ElectraConfig(**TEXT, embedding_size=32, num_labels=3),
        ),
        "electra-bare": (t.ElectraModel, t.ElectraConfig(**TEXT, embedding_size=32)),
        "distilbert": (
            t.DistilBertForSequenceClassification,
            t.DistilBertConfig(**DISTILLED, num_labels=3),
        ),
        "distilbert-relu": (
            t.DistilBertForSequenceClassification,
            t.DistilBertConfig(**DISTILLED, activation="relu", sinusoidal_pos_embds=True),
        ),
        "distilbert-bare": (t.DistilBertModel, t.DistilBertConfig(**DISTILLED)),
        "modernbert": (
            t.ModernBertForSequenceClassification,
            t.ModernBertConfig(**MODERN, num_labels=3, classifier_pooling="mean"),
        ),
        "modernbert-first-biased": (
            t.ModernBertForSequenceClassification,
            t.ModernBertConfig(
                **MODERN,
                num_labels=3,
                attention_bias=True,
                mlp_bias=True,
                norm_bias=True,
                classifier_bias=True,
                classifier_activation="relu",
                hidden_activation="silu",
                norm_eps=1e-2,
                rope_parameters={
                    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
                },
            ),
        ),
        "modernbert-masked": (t.ModernBertForMaskedLM, t.ModernBertConfig(**MODERN)),
        "modernbert-masked-untied": (
            t.ModernBertForMaskedLM,
            t.ModernBertConfig(
                **MODERN,
                decoder_bias=False,
                mlp_bias=True,
                tie_word_embeddings=False,
                layer_types=["sliding_attention"] * 3 + ["full_attention"],
            ),
        ),
        "modernbert-tokens": (
            t.ModernBertForTokenClassification,
            t.ModernBertConfig(**MODERN, num_labels=3, norm_bias=True),
        ),
        "modernbert-bare": (t.ModernBertModel, t.ModernBertConfig(**MODERN)),
        "eurobert": (t.EuroBertForSequenceClassification, t.EuroBertConfig(**EURO, num_labels=3)),
        "eurobert-mean-biased": (
            t.EuroBertForSequenceClassification,
            t.EuroBertConfig(
                **EURO,
                num_labels=3,
                classifier_pooling="mean",
                attention_bias=True,
                mlp_bias=True,
                head_dim=12,
                hidden_act="gelu",
                rms_norm_eps=1e-2,
                **_turning("linear", factor=4.0),
            ),
        ),
        "eurobert-masked": (t.EuroBertForMaskedLM, t.EuroBertConfig(**EURO)),
        "eurobert-masked-tied": (
            t.EuroBertForMaskedLM,
            t.EuroBertConfig(**EURO, mlp_bias=True, tie_word_embeddings=True),
        ),
        "eurobert-tokens": (
            t.EuroBertForTokenClassification,
            t.EuroBertConfig(**EURO, num_labels=3),
        ),
        "eurobert-bare": (t.EuroBertModel, t.EuroBertConfig(**EURO)),
        "gpt2-bare": (t.GPT2Model, t.GPT2Config(**OLD, **marked)),
        "smollm3-bare": (t.SmolLM3Model, t.SmolLM3Config(**GROUPED, **MARKS)),
        "vit": (t.ViTForImageClassification, t.ViTConfig(**PICTURE)),
        "vit-unbiased": (t.ViTForImageClassification, t.ViTConfig(**PICTURE, qkv_bias=False)),
        "vit-deit": (t.DeiTForImageClassificationWithTeacher, t.DeiTConfig(**PICTURE)),
        "vit-deit-one-head": (t.DeiTForImageClassification, t.DeiTConfig(**PICTURE)),
    }


def inputs(name: str) -> Tensor:
    """Return the input of a case: token ids [2, 20], or images."""
    draws = torch.Generator().manual_seed(2)
    if name.startswith("vit"):
        return torch.randn(2, 3, 16, 16, generator=draws)
    return torch.randint(3, 37, (2, 20), generator=draws)


def answer(theirs: Any, x: Tensor) -> Tensor:
    """Return what the model here gives: logits, of a bare encoder the mean of its features."""
    out = theirs(x)
    if hasattr(out, "logits"):
        return out.logits
    features = out.last_hidden_state
    if theirs.config.model_type in ("gpt2", "smollm3"):  # their embeddings are their heads
        return features @ theirs.get_input_embeddings().weight.T
    return features.mean(dim=1)


def saved(name: str, folder: Path, **options: Any) -> Any:
    """Return a case's model of transformers, which is saved to a folder."""
    kind, config = cases()[name]
    theirs = drawn(kind(config), seed=1).eval()
    for buffer_name, buffer in theirs.named_buffers():
        if buffer_name.endswith("e_score_correction_bias"):
            buffer.copy_(0.2 * normal(*buffer.shape, seed=2))
    theirs.save_pretrained(folder, **options)
    return theirs


def written_back(ours: Any, theirs: Any, folder: Path) -> Any:
    """Return their class with the weights that ours has after they were changed."""
    config = json.loads((folder / "config.json").read_text())
    for parameter in ours.parameters():
        parameter.mul_(1.5)
    save_file(tensors_for(ours, config), folder / "model.safetensors", {"format": "pt"})
    return type(theirs).from_pretrained(folder).eval()


def _greedy(ours: LM, theirs: Any, x: Tensor) -> bool:
    rows = x
    for _ in range(NEW):
        rows = torch.cat([rows, answer(theirs, rows)[:, -1:].argmax(dim=-1)], dim=1)
    state, mine = ours.state(), [x]
    logits = ours(x, state=state)[:, -1]
    for _ in range(NEW):
        mine.append(logits.argmax(dim=-1, keepdim=True))
        logits = ours.step(mine[-1][:, 0], state)
    return torch.equal(torch.cat(mine, dim=1), rows)


def _streamed(ours: LM, x: Tensor) -> float:
    state = ours.state()
    parts = [ours(x[:, a:b], state=state) for a, b in ((0, 7), (7, 8), (8, 20))]
    return float((torch.cat(parts, dim=1) - ours(x)).abs().max())


def _row(name: str) -> tuple[list[str], bool]:
    with tempfile.TemporaryDirectory() as place:
        folder, x = Path(place), inputs(name)
        theirs = saved(name, folder)
        ours: Any = open_source(folder).model
        wanted = answer(theirs, x)
        difference = float((ours(x) - wanted).abs().max())
        share = difference / float(wanted.abs().max())
        writes = isinstance(ours, LM)
        greedy = _greedy(ours, theirs, x) if writes else None
        streamed = f"{_streamed(ours, x):.1e}" if writes else ""
        again = written_back(ours, theirs, folder)
        back = float((ours(x) - answer(again, x)).abs().max())
    said = {True: "equal", False: "differ", None: ""}[greedy]
    cells = [name, type(theirs).__name__, f"{difference:.1e}", f"{share:.1e}"]
    return [*cells, said, streamed, f"{back:.1e}"], share <= MOST and greedy is not False


@torch.no_grad()
def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.released")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    only = parser.parse_args().only
    t.logging.set_verbosity_error()
    t.logging.disable_progress_bar()
    titles = ("case", "class", "difference", "share", "greedy", "streamed", "written back")
    table, right = Table(*titles), True
    for name in cases():
        if name.startswith(only):
            cells, equal = _row(name)
            table.add_row(*cells)
            right &= equal
    print_machine()
    CONSOLE.print(table)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
