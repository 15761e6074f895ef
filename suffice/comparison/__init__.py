"""Measuring: time, memory, statistics over seeds, the verdict and the report."""

from suffice.comparison.results import Cell, EpochRecord, Results, Speed
from suffice.comparison.sentence import notes, sentence, verdict_record
from suffice.comparison.verdict import Comparison, Verdict, judge

__all__ = [
    "Cell",
    "Comparison",
    "EpochRecord",
    "Results",
    "Speed",
    "Verdict",
    "judge",
    "notes",
    "sentence",
    "verdict_record",
]
