"""The repository in the format of the package `kernels`, loaded from its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

from suffice.testing import assert_close

kernels = pytest.importorskip("kernels")
FOLDER = Path(__file__).parents[3] / "packaging/hub_kernel/build"


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_a_function_gives_the_numbers_of_transformers():
    ours = kernels.get_local_kernel(FOLDER).chunk_gated_delta_rule
    inputs = [drawn(1, 40, 2, 16), drawn(1, 40, 2, 16).flip(1), drawn(1, 40, 2, 16).flip(3)]
    gates = {"g": -drawn(1, 40, 2).abs(), "beta": drawn(1, 40, 2).sigmoid()}
    options = gates | {"use_qk_l2norm_in_kernel": True, "output_final_state": True}
    theirs = qwen.torch_chunk_gated_delta_rule
    for got, want in zip(ours(*inputs, **options), theirs(*inputs, **options), strict=True):
        assert_close(got, want, n=100)


def test_a_layer_stands_for_that_of_transformers():
    repository = kernels.LocalLayerRepository(FOLDER, layer_name="RMSNormGated")
    norm, x, gate = qwen.Qwen3_5RMSNormGated(16), drawn(3, 16), drawn(3, 16).flip(0)
    want = norm(x, gate)
    assert_close(repository.load().forward(norm, x, gate), want, n=100)
