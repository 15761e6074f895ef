"""What a kernel refuses, and what it tells of itself."""

from __future__ import annotations

import pytest
import torch

from suffice import AttentionSpec
from suffice.errors import ConfigError
from suffice.kernels import Elu, Favor, Rfa, Softmax
from suffice.patterns import Causal, Window
from suffice.positions import Alibi
from suffice.testing import assert_close

SIZES = {"d_model": 16, "num_heads": 4}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Favor(0), "give at least one feature"),
        (lambda: Favor(seed=-1), "a seed of at least 0"),
        (lambda: Rfa(7), "give an even number of at least 2"),
        (lambda: Rfa(0), "give an even number of at least 2"),
        (lambda: Rfa(seed=-1), "a seed of at least 0"),
        (lambda: AttentionSpec(**SIZES, kernel=Elu(), scale=0.5), "scale=0.5 has no place"),
        (lambda: AttentionSpec(**SIZES, kernel=Rfa(), scale=0.5), "scale=0.5 has no place"),
        (lambda: AttentionSpec(**SIZES, kernel=Favor(), scale=-0.5), "must be above 0"),
        (lambda: AttentionSpec(**SIZES, kernel=Elu(), dropout=0.1), "has nothing to drop"),
        (
            lambda: AttentionSpec(**SIZES, kernel=Elu(), pattern=Window(3) & Causal()),
            "has no pairs to choose from",
        ),
        (lambda: AttentionSpec(**SIZES, kernel=Elu(), position=Alibi()), "forms no such products"),
    ],
)
def test_what_is_not_legal(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_features_are_counted():
    width = 8
    for kernel in (Elu(), Favor(20), Rfa(6)):
        maps = kernel.build(head_dim=width, scale=1.0, device=None)
        assert maps.queries(torch.zeros(1, width)).shape == (1, kernel.num_features(width))
    assert Softmax().num_features(width) == Softmax().feature_flops(width) == 0
    assert Elu().feature_flops(width) == 0
    assert Favor(20).feature_flops(width) == 2 * 20 * width
    assert Rfa(6).feature_flops(width) == 2 * 3 * width


def test_a_redrawn_matrix_is_another_and_stays():
    maps = Favor(20, seed=1).build(head_dim=8, scale=1.0, device=None)
    before = maps.omega.clone()
    maps.redraw(2)
    assert (maps.omega != before).all()
    assert_close(
        maps.omega, Favor(20, seed=2).build(head_dim=8, scale=1.0, device=None).omega, "exact"
    )
    assert maps.half().omega.dtype == torch.float32
