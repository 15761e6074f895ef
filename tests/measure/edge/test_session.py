from __future__ import annotations

import pytest
import torch

from suffice.errors import StateError
from suffice.measure.edge.run import Ours, Side, apart, check_alike, gain, run_of, session
from tests.measure.edge import tiny

IDS = torch.arange(40)


class Told(Side):
    """A side of known rates that notes when it writes."""

    def __init__(self, name, log, seconds=1.0):
        self.name, self.log, self.seconds = name, log, seconds

    def write(self, prompt, new):
        self.log.append((self.name, new))
        ticks = [0.0, *(2.0 + self.seconds * n for n in range(new))]
        return run_of(range(new), len(prompt), ticks)

    def logits(self, prompt, following):
        return torch.full((1 + len(following), 3), self.seconds)


def test_sides_write_in_turn_after_a_short_text():
    log = []
    sides = [Told(name, log) for name in "abc"]
    runs = session(sides, IDS, 20, 2)
    assert log[:3] == [("a", 8), ("b", 8), ("c", 8)]
    assert [name for name, _ in log[3:]] == [*"abc", *"bca"]
    assert {new for _, new in log[3:]} == {20}
    assert [len(own) for own in runs.values()] == [2, 2, 2]


def test_a_gain_is_the_median_of_the_rounds():
    runs = [Told("x", [], seconds).write(IDS, 3) for seconds in (1.0, 2.0, 4.0)]
    slow = [Told("y", [], 4.0).write(IDS, 3)] * 3
    assert gain(runs, slow, "decode") == 2.0
    assert gain(runs, slow, "prefill") == 1.0


def test_how_far_logits_are_apart():
    assert apart(Told("a", [], 2.0), Told("b", [], 3.0), IDS) == pytest.approx(0.5)
    assert apart(Told("a", [], 2.0), Told("b", [], 2.0), IDS) == 0.0


def test_a_side_that_computes_something_else_is_not_timed():
    lm, other = tiny.llama(), tiny.llama()
    check_alike(Ours(lm), Ours(other, name="other"), IDS)
    other.blocks[1].mlp.up.weight.data *= 1.5
    with pytest.raises(StateError, match=r"other: logits .* apart from those of suffice, more tha"):
        check_alike(Ours(lm), Ours(other, name="other"), IDS)
    check_alike(Ours(lm), Ours(other), IDS, 4)
    nothing = Told("nothing", [], float("nan"))
    with pytest.raises(StateError, match="nothing is timed"):
        check_alike(nothing, nothing, IDS)
