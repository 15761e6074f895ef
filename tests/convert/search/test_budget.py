"""What a plan may cost, in words."""

from __future__ import annotations

import pytest

from suffice.convert.search import Limit, budget_of
from suffice.errors import ConfigError

UNITS = {
    "state<=25%": (0.25, True),
    "state <= 0.5x": (0.5, True),
    "state<=64kB": (64e3, False),
    "state<=2KiB": (2048.0, False),
    "latency<=0.8x": (0.8, True),
    "latency<=2.5ms": (2.5e-3, False),
    "latency<=80us": (80e-6, False),
    "parameters<=10M": (10e6, False),
    "parameters<=1000": (1000.0, False),
    "loss<=105%": (1.05, True),
    "loss<=1.9": (1.9, False),
    "divergence<=1e-3": (1e-3, False),
}


@pytest.mark.parametrize("text", UNITS)
def test_units(text):
    (limit,) = budget_of(text)
    value, relative = UNITS[text]
    assert limit == Limit(
        name=text.split("<")[0].strip(), value=pytest.approx(value), relative=relative
    )
    assert limit.of(200.0) == pytest.approx(200.0 * value if relative else value)
    assert budget_of(str(limit)) == (
        Limit(name=limit.name, value=pytest.approx(value), relative=relative),
    )


def test_several_bounds():
    found = budget_of("state<=25%,latency<=0.8x , divergence<=0.01")
    assert [str(one) for one in found] == ["state<=25%", "latency<=80%", "divergence<=0.01"]
    assert str(budget_of("state<=0.5B")[0]) == "state<=0.5B"


WRONG = {
    "": r"budget '' is not understood at ''; write bounds such as state<=25%, latency",
    "state<25%": "is not understood at 'state<25%'",
    "state<=25%, fast": "is not understood at 'fast'",
    "stat<=25%": "unknown budget 'stat'; did you mean 'state'",
    "state<=0": "budget 'state<=0': give a number above 0",
    "state<=25": r"state has no unit 'none'; legal: %, x, B, kB, MB, GB, KiB, MiB, GiB",
    "latency<=5kB": r"latency has no unit 'kB'; legal: %, x, s, ms, us",
    "divergence<=5%": "divergence has no unit '%'; legal: none",
    "state<=25%, state<=9%": "bounds state twice; give one bound of it",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_told(text):
    with pytest.raises(ConfigError, match=WRONG[text]):
        budget_of(text)
