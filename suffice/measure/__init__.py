"""Measuring: time, memory, statistics over seeds, the verdict and the report."""

from suffice.measure.results import Cell, EpochRecord, Results, Speed
from suffice.measure.sentence import notes, sentence, verdict_record
from suffice.measure.verdict import Comparison, Verdict, judge

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
