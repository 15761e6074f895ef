"""Small language models for the tests of generation, and generation one token at a time."""

from __future__ import annotations

import torch

from suffice import AttentionSpec
from suffice.models import LMConfig
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.testing import drawn

V = 23
SPEC = AttentionSpec(d_model=16, num_heads=4, num_kv_heads=2, pattern=Causal(), position=Rope())
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 0, 3, 3], [0, 12, 5, 6]]


def model(spec=SPEC, *, seed=1, depth=2, positions="learned", vocabulary=V, **changes):
    """Return a model in float64 whose logits differ widely."""
    sizes = {"vocabulary_size": vocabulary, "length": 64, "d_model": spec.d_model, "depth": depth}
    config = LMConfig(**sizes, mlp_width=24, positions=positions, tied=False, **changes)
    lm = drawn(config.build(spec), seed=seed).double().eval()
    with torch.no_grad():
        lm.head.weight *= 4.0
        for weight in lm.blocks.parameters():
            weight *= 3.0
        lm.norm.weight.fill_(1.0)
        lm.norm.bias.zero_()
    return lm


@torch.no_grad()
def free_run(lm, prompt, new, choose=lambda logits, row: int(logits.argmax())):
    """Return a prompt and new tokens, everything read again for each one."""
    row = list(prompt)
    for _ in range(new):
        row.append(choose(lm(torch.tensor([row]))[0, -1], row))
    return row
