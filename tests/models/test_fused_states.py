"""What a native step keeps from one call to the next, and when it has to look again."""

from __future__ import annotations

import pytest
import torch

from suffice import AttentionSpec, preset
from suffice.errors import ConfigError
from suffice.memory import Dynamic, Quantised, Rolling
from suffice.models.native_decoder import SPAN, Fused
from suffice.patterns import Causal, Window
from suffice.positions import Rope
from suffice.testing import assert_close
from tests.models.fused_cases import begun, both, built, coded_both, drawn_tokens
from tests.ops.native.codings import needs_kernels

pytestmark = needs_kernels


def test_room_and_tables_grow_with_the_text():
    spec = AttentionSpec(d_model=16, num_heads=2, pattern=Causal(), position=Rope())
    for positions in ("none", "sinusoidal"):
        lm = built(spec, positions=positions, depth=1, length=16)
        tokens = drawn_tokens(1, SPAN + 4)
        assert_close(*both(lm, Dynamic(), tokens, SPAN - 4), n=SPAN)
    assert_close(*coded_both(lm, Quantised(block=8, recent=3), tokens, SPAN - 4), n=SPAN)


def test_more_rows_and_threads_get_more_room():
    lm = built(preset("gqa", 24, 4, causal=True))
    fused, before = Fused(lm, Dynamic()), torch.get_num_threads()
    try:
        for threads, rows in ((1, 1), (1, 6), (4, 6), (1, 2)):
            torch.set_num_threads(threads)
            assert_close(*both(lm, Dynamic(), drawn_tokens(rows, 12), 6, fused=fused), n=64)
            assert fused.sized == (rows, SPAN, threads)
    finally:
        torch.set_num_threads(before)


def test_every_state_is_looked_at_when_it_is_met():
    lm = built(preset("standard", 24, 4, causal=True))
    fused, one = Fused(lm, Dynamic()), torch.tensor([3])
    with torch.no_grad():
        mine = begun(lm, Dynamic(), drawn_tokens(1, 3))
        fused.step(one, mine)
        other = begun(lm, Rolling(4), drawn_tokens(1, 3))
        with pytest.raises(ConfigError, match=r"a state with Rolling.* stepped with Dynamic\(\)"):
            fused.step(one, other)
        fused.step(one, mine)
    assert (mine.length, other.length) == (5, 3)


def test_sinks_that_a_pattern_hides_are_not_read():
    """A memory may keep more than a window lets be seen: sinks leave it one by one."""
    pattern = Window(7) & Causal()
    spec = AttentionSpec(d_model=24, num_heads=2, pattern=pattern, position=Rope())
    lm = built(spec, positions="none")
    for memory in (Rolling(5, sinks=4), Rolling(3, sinks=2, spare=2), Rolling(12, sinks=3)):
        assert_close(*both(lm, memory, drawn_tokens(2, 24), 5), n=64)
