"""Estimates of memory, time and GPUs of a training run, on fake tensors."""

from suffice.measure.planning.devices import DEVICES, Device, device
from suffice.measure.planning.plan import PlanOptions, TrainingEstimate, plan
from suffice.measure.planning.trace import Trace, Workload, trace, workload

__all__ = [
    "DEVICES",
    "Device",
    "PlanOptions",
    "Trace",
    "TrainingEstimate",
    "Workload",
    "device",
    "plan",
    "trace",
    "workload",
]
