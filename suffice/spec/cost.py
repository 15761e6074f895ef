"""Closed-form cost of an attention layer: parameters, FLOPs and state.

A FLOP is one floating-point operation: a multiply-add counts 2. Counted are the matrix products,
which is what instrumentation of an execution counts too; softmax, norms, biases and other
elementwise work are not. A backward pass costs twice the forward; causal sums of features, which
are made again for it, up to three times.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from suffice.encoders.base import KEYS, QUERIES
from suffice.kernels import Recurrent, Softmax, base, recurrent
from suffice.patterns import Pattern
from suffice.patterns.base import count_blocks, residues

if TYPE_CHECKING:
    from suffice.utils.protocols import SpecLike

BLOCK = 64  # positions; the granularity at which ops skip what a sparse pattern leaves out


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One forward of one layer for one sample."""

    parameters: int  # learned numbers
    # of matrix products as executed, pairs included that a dense op computes and then masks
    flops: int
    visible_flops: int  # of the pairs that the pattern allows: the minimum for any op
    state_numbers: int  # of a KV cache per past token; 0 with a mixing that cannot stream
    state_fixed: int = 0  # numbers it keeps whatever the length: sums of features

    def state_bytes(self, tokens: int, bytes_per_number: int = 4) -> int:
        """Return the bytes of a KV cache that holds this many tokens."""
        return (self.state_numbers * tokens + self.state_fixed) * bytes_per_number


def count(spec: SpecLike, queries: int, keys: int) -> Cost:
    """Count a layer of this spec on `queries` positions that read `keys` positions."""
    rows = {QUERIES: queries, KEYS: keys}
    maps = spec.encoder.maps(spec).values()
    linear = sum(2 * rows[m.reads] * m.inputs * m.outputs for m in maps)
    linear += spec.combine.flops(spec, queries)
    causal, mixing = spec.pattern.causal, spec.mixing
    values = spec.kv_heads * spec.value_width
    fixed = linear + mixing.flops(keys, values, causal=causal)
    fixed += spec.past.flops(queries, spec.num_heads, spec.kv_heads, spec.head_width)
    read = mixing.reads(keys)
    computed, visible = _summed(spec, queries, read) or _weighed(spec, queries, read)
    cached = (*spec.cached_widths, *spec.unmixed_widths)
    return Cost(
        parameters=spec.encoder.parameters(spec)
        + spec.combine.parameters(spec)
        + spec.kernel.parameters(spec)
        + mixing.parameters(spec.kv_heads, causal=causal)
        + spec.past.parameters(spec.num_heads),
        flops=fixed + computed,
        visible_flops=fixed + visible,
        state_numbers=sum(heads * width for heads, width in cached),
        state_fixed=_sums(spec) + spec.past.state_fixed(spec.kv_heads, spec.head_width),
    )


def _weighed(spec: SpecLike, queries: int, keys: int) -> tuple[int, int]:
    """Return the FLOPs of the pairs an op computes, and of those that are visible."""
    of_heads = Counter(spec.pattern.of_heads(spec.query_heads)).items()
    computed = spec.query_heads * queries * keys
    if type(spec.kernel) is Softmax:  # no op leaves pairs of other kernels out
        computed = sum(heads * computed_pairs(one, queries, keys) for one, heads in of_heads)
    visible = sum(heads * pattern.pairs(queries, keys) for pattern, heads in of_heads)
    per_pair = 2 * (spec.head_width + spec.value_width)  # a multiply-add per feature
    return per_pair * computed, per_pair * visible


def _summed(spec: SpecLike, queries: int, keys: int) -> tuple[int, int] | None:
    """Return the FLOPs of sums of features, none of which could be left out; None: no sums."""
    if spec.lane == "pairs":
        return None
    if isinstance(spec.kernel, Recurrent):
        gates = queries * spec.kernel.gate_flops(spec)
        total = gates + recurrent.flops(
            queries,
            heads=spec.num_heads,
            key_width=spec.head_width,
            value_width=spec.value_width,
            by_features=spec.kernel.by_features,
            corrects=spec.kernel.corrects,
        )
        return total, total
    rows = queries * spec.query_heads + keys * spec.key_heads
    sums = base.flops(
        queries,
        keys,
        heads=spec.query_heads,
        groups=spec.key_heads,
        features=spec.kernel.num_features(spec.head_width),
        value_dim=spec.value_width,
        causal=spec.pattern.causal,
    )
    total = rows * spec.kernel.feature_flops(spec.head_width) + sums
    return total, total


def _sums(spec: SpecLike) -> int:
    """Return the numbers of the sums of features: weighted values, weights, a logarithm."""
    kernel = spec.kernel
    if kernel.lane == "pairs" or not spec.mixing.keeps_keys:
        return 0
    if isinstance(kernel, Recurrent):
        return kernel.state_numbers(spec)
    sums = kernel.num_features(spec.head_width) * (spec.value_width + 1)
    return spec.key_heads * (sums + kernel.stabilised)


def computed_pairs(pattern: Pattern, queries: int, keys: int) -> int:
    """Count the pairs an op computes for one head, with those it masks afterwards.

    All of a dense pattern, else whole blocks of BLOCK x BLOCK pairs: those the pattern touches. A
    part of `|` whose pairs lie only at multiples of a spacing is computed in the order of residues,
    so counted are the blocks it touches among the positions r, r + spacing, ... of each residue r.
    Never more than all pairs.
    """
    if pattern.dense:
        return queries * keys
    terms = pattern.terms()
    spaced = [term for term in terms if term.spacing > 1]
    near = [term for term in terms if term.spacing == 1]
    parts = Counter({(reduce(or_, near), queries, keys): 1} if near else {})
    for term in spaced:
        parts += residues(term, queries, keys)
    total = sum(times * _in_blocks(*part) for part, times in parts.items())
    return min(queries * keys, total)


def _in_blocks(pattern: Pattern, queries: int, keys: int) -> int:
    return min(queries * keys, count_blocks(pattern, queries, keys, BLOCK) * BLOCK * BLOCK)
