"""The band of a pattern allows exactly what its mask allows."""

from __future__ import annotations

import pytest
import torch

from suffice.patterns import Band, Block, Causal, Full, Global, PerHead, Random, Strided, Window

from .values import ALL

BANDS = {
    Full(): Band(None, None),
    Causal(): Band(None, 0),
    Window(8): Band(7, 7),
    Window(8) & Causal(): Band(7, 0),
    Causal() & Window(8) & Full(): Band(7, 0),
    (Window(8) | Global(3)) & Causal(): Band(7, 0, 3),
    (Window(8) & Causal()) | (Global(3) & Causal()): Band(7, 0, 3),
    (Window(8) | Global(3) | Global(5)) & Causal(): Band(7, 0, 5),
    ((Window(8) | Global(3)) & Causal()) | Window(2): Band(7, 1, 3),
    ((Window(8) | Global(3)) & Causal()) | (Window(20) & Causal()): Band(19, 0, 3),
    (Window(8) | Global(3)) & (Window(9) | Global(5)) & Causal(): Band(7, 0, 3),
    (Window(8) | Global(3)) & (Window(8) | Global(5)) & Causal(): Band(7, 0, 3),
    (Window(8) | Global(5)) & (Window(9) | Global(3)) & Causal(): None,
    (Window(8) | Global(5)) & Window(12) & Causal(): None,
    (Causal() | Global(5)) & Causal(): Band(None, 0),
    Causal() | Window(3): Band(None, 2),
    (Causal() | Window(3)) & Window(9): Band(8, 2),
    Window(3) | Window(9): Band(8, 8),
    Full() | Window(9): Band(None, None),
    Global(3): None,
    Global(3) & Causal(): None,
    Window(8) | Global(3): None,
    Strided(3): None,
    Random(2): None,
    Block(4): None,
    PerHead((Window(3), Causal())): None,
}


@pytest.mark.parametrize(("pattern", "band"), BANDS.items(), ids=repr)
def test_bands_of_compositions(pattern, band):
    assert pattern.band() == band


@pytest.mark.parametrize("pattern", [*ALL, *BANDS], ids=repr)
def test_a_band_allows_what_the_mask_allows(pattern):
    band = pattern.band()
    if band is None:
        return
    for queries, keys in ((1, 1), (7, 7), (30, 30), (5, 23), (23, 5)):
        i, j = torch.arange(keys - queries, keys)[:, None], torch.arange(keys)
        before, after = (keys + queries if n is None else n for n in band[:2])
        seen = (j <= i + after) & ((j >= i - before) | (j < band.sinks))
        assert torch.equal(pattern.mask(queries, keys), seen)
