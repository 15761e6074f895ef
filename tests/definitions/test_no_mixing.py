"""NoMixing and NoPosition: nothing but content counts, so keys may come in any order."""

from __future__ import annotations

import torch

from suffice import AttentionSpec
from suffice.mixing import Alignment, NoMixing
from suffice.positions import NoPosition, Rope
from suffice.testing import assert_close, normal

from .loops import built

ORDER = torch.tensor([3, 0, 4, 1, 2])


def moved(spec):
    """What permuting the positions changes, beyond permuting the outputs."""
    layer, x = built(spec), normal(2, 5, 8, seed=1)
    return layer(x[:, ORDER]), layer(x)[:, ORDER]


def test_permuted_positions_permute_the_outputs():
    spec = AttentionSpec(d_model=8, num_heads=2, mixing=NoMixing(), position=NoPosition())
    assert_close(*moved(spec))


def test_a_mixing_or_a_position_breaks_that():
    for changed in ({"mixing": Alignment(5)}, {"position": Rope()}):
        got, want = moved(AttentionSpec(d_model=8, num_heads=2, **changed))
        assert (got - want).abs().max() > 0.01
