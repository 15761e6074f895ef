"""Sparse softmax attention: a pattern cut into tiles, and the sweeps over them."""

from suffice.ops.sparse.blocked import BLOCKED

__all__ = ["BLOCKED"]
