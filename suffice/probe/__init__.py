"""Probes: small tasks that tell what attention can recall, and controls that must fail."""

from suffice.probe.branches import Branch, branches, without
from suffice.probe.checkpoint import Ablation, CheckpointReport, probe_checkpoint
from suffice.probe.figure import recall_figure, write_figure
from suffice.probe.mechanisms import probe_mechanisms
from suffice.probe.recall import Recall
from suffice.probe.report import Finding, Report
from suffice.probe.suite import suite
from suffice.probe.task import Task, View

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
