"""The composition of one attention layer: its spec, its cost and its lowering."""

from suffice.spec.spec import AXES, AttentionSpec, check_shares, conflicts

__all__ = ["AXES", "AttentionSpec", "check_shares", "conflicts"]
