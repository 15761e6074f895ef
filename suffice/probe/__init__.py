"""Probes: small tasks that measure what attention can recall, with negative controls."""

from suffice.probe.checkpoint import (
    Ablation,
    Branch,
    CheckpointReport,
    branches,
    probe_checkpoint,
    without,
)
from suffice.probe.mechanisms import probe_mechanisms
from suffice.probe.recall import Recall
from suffice.probe.report import Finding, Report, recall_figure, write_figure
from suffice.probe.tasks import Task, View, suite

__all__ = [
    "Ablation",
    "Branch",
    "CheckpointReport",
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
