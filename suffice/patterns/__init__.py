"""Which keys a query may see: one file per pattern, combined with `&` and `|`."""

from suffice.patterns.base import Pattern
from suffice.patterns.block import Block
from suffice.patterns.causal import Causal
from suffice.patterns.combined import And, Or
from suffice.patterns.dilated import Dilated
from suffice.patterns.fixed import Fixed
from suffice.patterns.full import Full
from suffice.patterns.global_tokens import Global
from suffice.patterns.layout import Layout
from suffice.patterns.per_head import PerHead
from suffice.patterns.random import Random
from suffice.patterns.strided import Strided
from suffice.patterns.window import Window

__all__ = [
    "And",
    "Block",
    "Causal",
    "Dilated",
    "Fixed",
    "Full",
    "Global",
    "Layout",
    "Or",
    "Pattern",
    "PerHead",
    "Random",
    "Strided",
    "Window",
]
