"""Small models of transformers with drawn weights."""

from __future__ import annotations

import torch
import transformers

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": None,
}
DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
MAMBA = {
    "num_heads": 8,
    "head_dim": 8,
    "state_size": 16,
    "n_groups": 2,
    "expand": 2,
    "chunk_size": 16,
}
RECURRENT = {
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", DELTA),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", DELTA | EXPERTS),
    "mamba2": ("Mamba2Config", "Mamba2ForCausalLM", MAMBA),
    "bamba": (
        "BambaConfig",
        "BambaForCausalLM",
        {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16},
    ),
}
WINDOWS = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
ATTENDING = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": 5}),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        WINDOWS | {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    ),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", WINDOWS | {"query_pre_attn_scalar": 8}),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        WINDOWS | {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen3_5": RECURRENT["qwen3_5"],
}
"""By name: configuration, class and what the configuration has beyond SIZES."""


def model(name, seed=0, **others):
    """Return a model whose answers depend on the text: its weights are far from their start."""
    config, kind, more = (RECURRENT | ATTENDING)[name]
    torch.manual_seed(seed)
    made = getattr(transformers, kind)(
        getattr(transformers, config)(**SIZES | more | others)
    ).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return made


def tokens(rows=2, length=70, seed=1):
    return torch.randint(1, 64, (rows, length), generator=torch.Generator().manual_seed(seed))


def gradients(module):
    """Return those of all parameters in one vector."""
    parts = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    return torch.cat(parts)
