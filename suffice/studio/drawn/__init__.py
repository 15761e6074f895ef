"""Patterns as the page asks for them: read from code, drawn as data, listed by mechanism."""

from suffice.studio.drawn.mechanisms import LENGTHS, Sketch, sketches
from suffice.studio.drawn.read import read
from suffice.studio.drawn.runs import drawn, pattern_answer

__all__ = ["LENGTHS", "Sketch", "drawn", "pattern_answer", "read", "sketches"]
