"""What a layer reads of the past that its pattern leaves out: one file per value."""

from suffice.past.base import Past
from suffice.past.infini import Infini
from suffice.past.no_past import NoPast

__all__ = ["Infini", "NoPast", "Past"]
