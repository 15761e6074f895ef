"""A verdict on results that other programs wrote."""

from suffice.comparison.external.verdict import ExternalVerdict, verdict

__all__ = ["ExternalVerdict", "verdict"]
