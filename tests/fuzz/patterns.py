# ruff: noqa: E402 - the imports follow the check that Hypothesis is there
"""Patterns and compositions that Hypothesis draws, beside the formula in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_, or_
from typing import Any

import pytest
import torch

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from suffice.patterns import (
    Block,
    Causal,
    Dilated,
    Fixed,
    Full,
    Global,
    Neighbourhood,
    Pattern,
    PerHead,
    Random,
    ShiftedWindows,
    Strided,
    Window,
)
from tests.product.test_pairs_of_features import (
    BF16,
    F16,
    F32,
    F64,
    HEADS,
    LAYER_FACTORS,
    STREAM_FACTORS,
    check_layer,
    check_ops,
    check_stream,
    layer_is_legal,
    op_is_legal,
    stream_is_legal,
)

EXAMPLES = 40  # of one call
LONGEST = 300
whole = st.integers

single = st.one_of(
    st.just(Full()),
    st.just(Causal()),
    st.builds(Window, whole(1, 150)),
    st.builds(Dilated, whole(1, 40), whole(1, 9)),
    st.builds(Strided, whole(1, 70)),
    st.builds(Global, whole(1, 9)),
    st.builds(Random, whole(1, 9), seed=whole(0, 5)),
    st.builds(Block, whole(1, 90)),
    st.builds(Fixed, whole(2, 40), whole(1, 2)),
    st.builds(Neighbourhood, whole(30, 40), whole(9, 12), whole(1, 9), whole(0, 3)),
    st.builds(ShiftedWindows, whole(30, 40), whole(9, 12), whole(5, 9), whole(0, 4), whole(0, 3)),
)


def _joined(parts: st.SearchStrategy[Pattern]) -> st.SearchStrategy[Pattern]:
    several = st.lists(parts, min_size=2, max_size=3, unique=True)
    return st.one_of(
        st.builds(lambda those: reduce(and_, those), several),
        st.builds(lambda those: reduce(or_, those), several),
        st.builds(lambda one: one & Causal(), parts),
    )


alike = st.recursive(single, _joined, max_leaves=5)
patterns = st.one_of(alike, alike, st.builds(PerHead, st.tuples(*[alike] * HEADS)))


@st.composite
def lengths(draw: st.DrawFn) -> tuple[int, int]:
    """Return queries and keys, often at the ends of blocks."""
    edges = st.sampled_from((1, 2, 8, 31, 32, 33, 63, 64, 65, 127, 128, 129, 192, 193, 256, 257))
    keys = draw(st.one_of(whole(1, LONGEST), edges))
    return draw(st.one_of(st.just(keys), whole(1, keys), st.just(1))), keys


@given(pattern=patterns, sizes=lengths(), block=st.sampled_from((1, 3, 32, 64)))
def masks(pattern: Pattern, sizes: tuple[int, int], block: int) -> None:
    """The mask is the predicate; counts, layouts and residues are those of the mask."""
    queries, keys = sizes
    at = torch.arange(keys)
    want = pattern.allowed(at[keys - queries :, None], at[None])
    mask = pattern.mask(queries, keys)
    mask = mask if mask.dim() == 3 else mask[None]  # noqa: PLR2004
    assert torch.equal(mask, want.expand(mask.shape))
    either = mask.any(0)
    assert pattern.pairs(queries, keys) == int(either.sum())
    touched = pattern.layout(queries, keys, block).touched
    padding = (0, -keys % block, 0, -queries % block)
    some, every = (
        torch.nn.functional.pad(mask, padding, value=outside)
        .unfold(1, block, block)
        .unfold(2, block, block)
        .movedim(0, -1)
        .flatten(2)
        for outside in (False, True)
    )
    assert torch.equal(touched > 0, some.any(-1))
    assert torch.equal(touched == 2, every.all(-1))  # noqa: PLR2004
    if pattern.causal:
        assert not either[:, keys - queries :].triu(1).any()
    square = pattern.mask(keys, keys)
    step, first = block % 5 + 1, block % 2
    if step > first and keys > first:
        among = pattern.every(step, first)
        assert torch.equal(among.mask(*2 * [len(range(first, keys, step))]),
                           square[..., first::step, first::step])  # fmt: skip


def _cases(factors: dict[str, Any], legal: Callable[[dict[str, Any]], bool]) -> Any:
    return st.fixed_dictionaries(factors).filter(legal)


def _sampled(factors: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {name: others.get(name, st.sampled_from(values)) for name, values in factors.items()}


OPS = {
    "pattern": patterns,
    "kv_heads": st.sampled_from((4, 2, 1)),
    "lengths": lengths(),
    "data": st.sampled_from(("plain", "padded", "hidden rows", "documents", "mask")),
    "odd": st.sampled_from(("none", "masked", "key", "value")),
    "dtype": st.sampled_from((F32, F32, F64, BF16, F16)),
    "pieces": st.booleans(),
}


@given(case=_cases(OPS, op_is_legal))
def ops(case: dict[str, Any]) -> None:
    """Every op is the formula: outputs and gradients."""
    assert check_ops(case) >= 1


@given(case=_cases(_sampled(LAYER_FACTORS, length=whole(18, LONGEST)), layer_is_legal))
def layers(case: dict[str, Any]) -> None:
    """A layer gives each text what it gets alone."""
    check_layer(case)


@given(case=_cases(_sampled(STREAM_FACTORS, length=whole(96, 320)), stream_is_legal))
def streams(case: dict[str, Any]) -> None:
    """A stream gives each text what it gets alone."""
    check_stream(case)


CHECKS = (masks, ops, layers, streams)


def run(check: Callable[[], None], number: int, examples: int = EXAMPLES) -> int:
    """Let Hypothesis draw examples of one seed; return how many there were."""
    quiet = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(quiet(check))()
    return examples
