"""Small models for these tests."""

from __future__ import annotations

import torch

from suffice import preset
from suffice.hf import SufficeConfig, SufficeForCausalLM

V, T = 50, 40
MECHANISMS = (
    "standard",
    "optimised",
    "efficient",
    "super_attention",
    "gqa",
    "cla",
    "sliding_window",
    "performer",
    "linear",
    "infini",
)
SIZES = {
    "vocab_size": V,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": T,
}


def config(mechanism="standard", **others):
    sizes = SIZES | others
    if mechanism != "infini":
        return SufficeConfig(**sizes, mechanism=mechanism)
    short = preset("infini", 32, 4, segment=4)  # rows of several segments
    return SufficeConfig(**sizes, specs=[short.to_json()])


def model(mechanism="standard", seed=0, **others):
    """Return a model whose answers depend on the text: its weights are far from their start."""
    torch.manual_seed(seed)
    made = SufficeForCausalLM(config(mechanism, **others)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.15)
    return made


def tokens(rows=2, length=9, seed=1):
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))


def left_padded(length=9, short=5):
    """Return two rows of tokens, the second with `short` real ones on the right, and their mask."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, : length - short] = 0
    return tokens(length=length), mask
