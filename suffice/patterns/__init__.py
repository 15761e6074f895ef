"""Which keys a query may see: one file per pattern, combined with `&` and `|`."""

from suffice.patterns.base import Layout, Pattern
from suffice.patterns.causal import Causal
from suffice.patterns.combined import And, Or
from suffice.patterns.full import Full

__all__ = ["And", "Causal", "Full", "Layout", "Or", "Pattern"]
