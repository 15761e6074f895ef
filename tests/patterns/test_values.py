"""What patterns are as values: refusals, facts, JSON, heads."""

from __future__ import annotations

import json

import pytest
import torch

from suffice.errors import ConfigError
from suffice.patterns import (
    And,
    Block,
    Causal,
    Dilated,
    Fixed,
    Full,
    Global,
    Or,
    Pattern,
    PerHead,
    Random,
    Strided,
    Window,
)

from .values import ALL, SAMPLES


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Window(0), r"Window\(size=0\) holds no key; give at least 1"),
        (lambda: Window("3"), "Window: size='3' is not a whole number"),
        (lambda: Window(2.0), "size=2.0 is not a whole number"),
        (lambda: Window(True), "size=True is not a whole number"),
        (lambda: Dilated(0, 2), r"Dilated\(size=0, dilation=2\) holds no key; give at least"),
        (lambda: Dilated(2, 0), r"Dilated\(size=2, dilation=0\) holds no key"),
        (lambda: Dilated(2, None), "dilation=None is not a whole number"),
        (lambda: Strided(0), r"Strided\(stride=0\) has no keys to step along; give at least 1"),
        (lambda: Fixed(0), r"Fixed\(stride=0, tail=1\): a stretch has at least 1 position"),
        (lambda: Fixed(3, 0), r"tail=0\): .* give 1 <= tail <= stride"),
        (lambda: Fixed(3, 4), r"tail=4\): .* give 1 <= tail <= stride"),
        (lambda: Global(0), r"Global\(tokens=0\) has no hub and allows nothing; give at least 1"),
        (lambda: Random(0), r"Random\(keys=0\) draws nothing; give at least 1"),
        (lambda: Random(2, length=0), r"Random\(length=0\) has no position to draw from; give the"),
        (lambda: Random(2, seed=0.5), "seed=0.5 is not a whole number"),
        (lambda: Block(0), r"Block\(size=0\) holds no position; give at least 1"),
        (lambda: Block(2, 3), r"Block\(over=3\) is not a pattern; give an instance"),
        (lambda: Block(2, Causal), r"Block\(over=<class .*Causal'>\) is not a pattern"),
        (lambda: PerHead(()), r"PerHead takes a tuple of patterns, one for each head, got \(\)"),
        (lambda: PerHead(Full()), r"one for each head, got Full\(\)"),
        (lambda: PerHead((Full(), 3)), r"one for each head, got \(Full\(\), 3\)"),
        (lambda: PerHead((Full(), Causal)), "one for each head, got"),
        (lambda: PerHead([Full()]), "one for each head, got"),
        (
            lambda: PerHead((Full(), PerHead((Full(), Causal())) & Causal())),
            "is made for 2 heads; PerHead takes the pattern of one head in each place",
        ),
        (
            lambda: PerHead((Full(),)) | (Causal() & PerHead((Full(), Causal()))),
            "Or combines patterns made for 1 and 2 heads; give all the same number",
        ),
        (
            lambda: PerHead((Full(), Causal())) & PerHead((Full(),) * 3),
            "And combines patterns made for 2 and 3 heads",
        ),
        (lambda: PerHead((Full(), Causal())).of_heads(3), "is made for 2 heads, not for 3"),
        (
            lambda: (PerHead((Full(), Causal())) & Causal()).of_heads(1),
            "is made for 2 heads, not for 1",
        ),
    ],
)
def test_refusals(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


@pytest.mark.parametrize(
    "parts",
    [(), (Full(),), (Full(), "causal"), (Full(), Causal), None, [Full(), Causal()]],
    ids=str,
)
@pytest.mark.parametrize("combined", [And, Or])
def test_combinations_need_two_patterns(combined, parts):
    with pytest.raises(ConfigError, match=f"{combined.__name__} combines two or more patterns"):
        combined(parts)


@pytest.mark.parametrize("pattern", ALL, ids=repr)
def test_json(pattern):
    again = Pattern.from_json(json.loads(json.dumps(pattern.to_json())))
    assert again == pattern
    assert hash(again) == hash(pattern)
    assert repr(again) == repr(pattern)
    assert torch.equal(again.mask(9, 9), pattern.mask(9, 9))


def test_json_may_leave_out_defaults():
    assert Pattern.from_json({"name": "Block", "size": 3}) == Block(3, Window(1))
    assert Pattern.from_json({"name": "Random", "keys": 3}) == Random(3, length=None, seed=0)
    assert Pattern.from_json({"name": "Fixed", "stride": 3}) == Fixed(3, 1)


@pytest.mark.parametrize("pattern", ALL, ids=repr)
def test_causal_is_what_the_mask_says(pattern):
    """No pattern that calls itself causal looks ahead; those that do not, do."""
    ahead = bool(pattern.mask(150, 150).triu(diagonal=1).any())
    alone = not ahead and pattern in (Window(1), Dilated(1, 3))
    assert pattern.causal is (not ahead and not alone)


@pytest.mark.parametrize("pattern", ALL, ids=repr)
def test_of_heads_are_the_rows_of_the_mask(pattern):
    heads = pattern.heads or 3
    masks = torch.stack([part.mask(9, 12) for part in pattern.of_heads(heads)])
    assert torch.equal(masks, pattern.mask(9, 12).expand(heads, 9, 12))
    assert all(part.heads is None for part in pattern.of_heads(heads))


def test_heads():
    two = PerHead((Window(2), Causal()))
    assert (
        two.heads == (two & Causal()).heads == (Global(1) | two).heads == Block(2, two).heads == 2
    )
    assert (Window(2) | Causal()).heads is None
    assert (two & Causal()).of_heads(2) == (Window(2) & Causal(), Causal() & Causal())
    assert (two | Global(1)).of_heads(2) == (Window(2) | Global(1), Causal() | Global(1))
    assert Block(3, two).of_heads(2) == (Block(3, Window(2)), Block(3, Causal()))
    assert Window(2).of_heads(2) == (Window(2), Window(2))
    assert (Window(2) & Causal()).of_heads(1) == (Window(2) & Causal(),)


def test_dense():
    """Only where skipping would save little."""
    dense = {p for p in SAMPLES if p.dense}
    assert dense == {Full(), Causal(), Full() & Causal(), Causal() | Full()}
    assert (Window(3) | Full()).dense
    assert not (Window(3) & Full()).dense
    assert not (Window(3) | Strided(2)).dense
    assert Block(3, Causal()).dense
    assert PerHead((Full(), Causal())).dense
    assert not PerHead((Full(), Window(3))).dense


def test_crosses():
    """Only what does not depend on positions means something between two sequences."""
    assert [p for p in SAMPLES if p.crosses] == [Full()]
    assert (Full() | Full()).crosses
    assert Block(2, Full()).crosses
    assert PerHead((Full(), Full())).crosses
    assert not PerHead((Full(), Causal())).crosses
    assert not (Full() & Causal()).crosses


def test_max_length():
    assert Random(2, length=9).max_length == 9
    assert Block(4, Random(2, length=9) | Window(1)).max_length == 36
    assert (Random(2, length=9) | Random(1, length=5) | Full()).max_length == 5
    assert (Random(2, length=9) & Causal()).max_length == 9
    assert PerHead((Full(), Random(2, length=9))).max_length == 9
    assert (Window(2) | Random(2)).max_length is None
    assert PerHead((Full(), Causal())).max_length is None
    assert Block(4).max_length is None


def test_spacing():
    assert Dilated(3, 5).spacing == 5
    assert (Strided(4) & Dilated(3, 6) & Causal()).spacing == 12
    assert (Strided(4) | Strided(4)).spacing == 1
    assert PerHead((Strided(4), Strided(4))).spacing == 1


def test_patterns_are_values():
    assert Full() & Causal() == And((Full(), Causal()))
    assert hash(Full() | Causal()) == hash(Or((Full(), Causal())))
    assert Full() & Causal() != Causal() & Full()
    assert Window(3) != Strided(3)
    assert len({Window(3), Window(3), Window(4)}) == 2


def test_samples_are_small_and_few():
    """A conformance test at length 5 meets both what they allow and what they hide."""
    for value in {type(pattern) for pattern in SAMPLES}:
        assert 1 <= len(value.samples()) <= 2
    for pattern in SAMPLES:
        assert pattern.mask(5, 5).any()
        assert pattern.dense or not pattern.mask(5, 5).all()


WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mixed(word):
    """The 64-bit finaliser of the papers on splittable generators, in whole numbers of Python."""
    word &= WORD
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
    return word ^ (word >> 31)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**64, 10**30])
@pytest.mark.parametrize("length", [None, 50])
def test_draws_are_this_function_of_seed_query_and_number(seed, length):
    """What is saved is the seed alone, so no release may draw otherwise."""
    rows = []
    for q in range(50):
        n = length or q + 1
        of_query = mixed(mixed(seed + GOLDEN) ^ q)
        r = min(3, n)
        row = []
        for j in range(r):
            number = mixed(of_query + (j + 1) * GOLDEN) & (WORD >> 1)
            first, last = n * j // r, n * (j + 1) // r
            row.append(first + number % (last - first))
        rows.append(row)
    mask = Random(3, length=length, seed=seed).mask(50, 50)
    assert [row.nonzero().flatten().tolist() for row in mask] == rows


def test_draws_do_not_depend_on_the_dtype_of_positions():
    pattern = Random(3, length=50, seed=11)
    q, k = torch.arange(50)[:, None], torch.arange(50)[None]
    for dtype in (torch.int16, torch.int32, torch.uint8):
        assert torch.equal(pattern.allowed(q.to(dtype), k.to(dtype)), pattern.mask(50, 50))
