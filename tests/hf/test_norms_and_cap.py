"""Norms after a branch, a cap and mixtures of experts come through transformers' classes."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from suffice import preset  # noqa: E402 - they need transformers
from suffice.hf import SufficeForCausalLM  # noqa: E402
from suffice.layers import Experts  # noqa: E402
from suffice.models import LMConfig  # noqa: E402
from suffice.testing import drawn  # noqa: E402


@torch.no_grad()
def test_logits_are_those_of_the_model(tmp_path):
    sizes = {"vocabulary_size": 11, "length": 12, "d_model": 16, "depth": 2, "mlp_width": 24}
    experts = Experts(num_experts=3, top_k=2, width=8, correction=True, dense=(1,))
    others = {"activation": "swiglu", "experts": experts}
    config = LMConfig(**sizes, **others, norm="rms", residual="both", logit_cap=0.5)
    lm = drawn(config.build(preset("standard", 16, 2, causal=True)), seed=3).eval()
    tokens = torch.arange(18).view(2, 9) % 11
    SufficeForCausalLM.from_suffice(lm).save_pretrained(tmp_path)
    again = SufficeForCausalLM.from_pretrained(tmp_path).eval()
    assert (again(tokens).logits - lm(tokens)).abs().max() < 1e-6
