"""How sums of features run along a sequence, and what the products of that cost.

A causal sum is computed in chunks: pairs within a chunk, one state [F, columns] between chunks.
With chunks as long as a head is wide, the products of pairs and of states cost about the same.

Letters: T queries, S keys, F features, C positions of a chunk, E value width.
"""

from __future__ import annotations

CHUNK = 64  # positions; judged by benchmarks/mechanisms.py --case linear
ALIGNED = 8  # numbers; products with a whole number of such columns run faster


def columns(value_dim: int) -> int:
    """Return the width of values with the ones beside them that sum up the weights."""
    return -(-(value_dim + 1) // ALIGNED) * ALIGNED


def flops(
    queries: int,
    keys: int,
    *,
    heads: int,
    groups: int,
    features: int,
    value_dim: int,
    causal: bool,
) -> int:
    """Return the FLOPs of the products of a scan, without those that make the features.

    Args:
        queries: T; with causal they stand last among the keys.
        keys: S.
        heads: query heads.
        groups: key/value heads.
        features: F.
        value_dim: E.
        causal: whether a query sees itself and earlier keys only.
    """
    width = columns(value_dim)
    state = 2 * features * width  # to add one key, or to ask for one query
    if not causal:
        return state * (groups * keys + heads * queries)
    square = min(queries, keys)
    before = keys - square
    whole, rest = divmod(square, CHUNK)
    pairs = whole * CHUNK**2 + rest**2
    added = max(square - 1, 0) // CHUNK * CHUNK  # all but the last chunk
    asking = square if before else max(square - CHUNK, 0)  # all but a chunk with none before it
    within = 2 * (features + width) * heads * pairs
    return within + state * (groups * (before + added) + heads * asking)
