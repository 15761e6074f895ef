"""Probes: small tasks that measure what attention can recall, with negative controls."""

from suffice.measure.model_recall import Recall
from suffice.measure.probe.checkpoint import (
    Ablation,
    Branch,
    branches,
    probe_checkpoint,
    without,
)
from suffice.measure.probe.mechanisms import probe_mechanisms
from suffice.measure.probe.report import Finding, Report, recall_figure, write_figure
from suffice.measure.probe.tasks import Task, View, suite

__all__ = [
    "Ablation",
    "Branch",
    "Finding",
    "Recall",
    "Report",
    "Task",
    "View",
    "branches",
    "probe_checkpoint",
    "probe_mechanisms",
    "recall_figure",
    "suite",
    "without",
    "write_figure",
]
