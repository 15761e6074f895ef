"""A layer of every mechanism, small, for promises that hold for all of them.

Which ops and which data go with a mechanism is asked of the library (`accepting`, `ops_of`,
`takes`); what is refused, and with which sentence, is written down in `test_refusals`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from suffice import Attention, AttentionSpec, preset
from suffice.errors import ConfigError
from suffice.mixing import Alignment
from suffice.ops import OPS, AttentionCall
from suffice.patterns import Full, Pattern
from suffice.positions import Rope
from suffice.presets import PRESETS, takes_length
from suffice.testing import drawn

RECURRENT = ("retnet", "lightning", "mamba2", "gla", "deltanet", "gated_deltanet")
LENGTH = 9
D_MODEL = 12
NUM_HEADS = 3


def spec_of(
    name: str,
    *,
    causal: bool = False,
    d_model: int = D_MODEL,
    num_heads: int = NUM_HEADS,
    length: int = LENGTH,
) -> AttentionSpec:
    """The preset, sized for a length if it can be."""
    options = {"length": length} if takes_length(name) else {}
    if name == "infini":
        options["segment"] = 4  # so that short tests meet several
    return preset(name, d_model, num_heads, causal=causal, **options)


def legal(name: str, causal: bool) -> bool:
    try:
        spec_of(name, causal=causal)
    except ConfigError:
        return False
    return True


PRESET_KINDS = {
    f"causal-{name}" if causal else name: (name, causal)
    for causal in (False, True)
    for name in PRESETS
    if legal(name, causal)
}
"""Each preset with look-ahead and without, where it can be either: (name, causal)."""

SPECS: dict[str, AttentionSpec] = {
    **{kind: spec_of(name, causal=causal) for kind, (name, causal) in PRESET_KINDS.items()},
    "rope": AttentionSpec(d_model=D_MODEL, num_heads=NUM_HEADS, position=Rope()),
    "super-per-head": AttentionSpec(
        d_model=D_MODEL, num_heads=NUM_HEADS, mixing=Alignment(LENGTH, per_head=True)
    ),
}
NAMES = tuple(SPECS)
CROSS = tuple(n for n, s in SPECS.items() if not s.refuses_source())


def takes(spec: AttentionSpec, data: Collection[str]) -> bool:
    """Whether layers of the spec honour these arguments: "valid", "segments", "mask"."""
    pairs = spec.beyond_pairs.keys() <= {"shares"}
    return (pairs or "mask" not in data) and (spec.keeps_documents or "segments" not in data)


MASKED = tuple(name for name, spec in SPECS.items() if takes(spec, {"mask"}))
DOCUMENTED = tuple(name for name, spec in SPECS.items() if takes(spec, {"segments"}))


def willing(problem: AttentionCall) -> tuple[str, ...]:
    """The ops that accept a problem in every dtype; the native ones have tests of their own."""
    problem = replace(problem, dtype=torch.float64)
    if problem.kernel.lane == "recurrence":
        return ("recurrence", "reference")
    return tuple(name for name, op in OPS.items() if not op.refuses(problem))


def ops_of(
    spec: AttentionSpec, queries: int = LENGTH, keys: int | None = None, data: Collection[str] = ()
) -> tuple[str, ...]:
    """The ops that accept a layer of the spec; keys=None is self-attention."""
    own = keys is None
    read = spec.mixing.reads(queries if own else keys)
    plain = not data or not spec.mixing.keeps_keys
    pairwise = "mask" in data or ("segments" in data and not own)
    return willing(AttentionCall.of(spec, queries, read, plain=plain, pairwise=pairwise))


def accepting(
    queries: int,
    keys: int,
    *,
    heads: tuple[int, int] = (4, 2),
    widths: tuple[int, int] = (8, 8),
    pattern: Pattern = Full(),  # noqa: B008 - frozen
    data: Collection[str] = (),
) -> tuple[str, ...]:
    """The ops that accept a call of `attend`; heads and widths are (H, G) and (D, E)."""
    problem = AttentionCall(
        queries=queries,
        keys=keys,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=widths[0],
        value_dim=widths[1],
        scale=1.0,
        pattern=pattern,
        plain=not data,
        pairwise=bool({"mask", "segments"} & set(data)),
    )
    return willing(problem)


@contextmanager
def named(*values: object) -> Iterator[None]:
    """Add these values to an error: which of a test's cases failed."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"case: {values}")
        raise


def layer_of(name: str, *, dtype: torch.dtype = torch.float64, impl: str = "auto") -> Attention:
    return drawn(Attention(SPECS[name], impl=impl), seed=4).to(dtype)
