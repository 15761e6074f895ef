"""The composition of one attention layer: its description, what it costs and what it lowers to."""

from suffice.spec.spec import AXES, AttentionSpec, check_shares, conflicts

__all__ = ["AXES", "AttentionSpec", "check_shares", "conflicts"]
