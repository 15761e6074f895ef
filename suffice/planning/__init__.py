"""Estimate the memory, time and GPUs of a training run with fake tensors."""

from suffice.planning.devices import DEVICES, Device, device
from suffice.planning.plan import Plan, PlanOptions, plan
from suffice.planning.trace import Trace, trace
from suffice.planning.workload import Workload, workload

__all__ = [
    "DEVICES",
    "Device",
    "Plan",
    "PlanOptions",
    "Trace",
    "Workload",
    "device",
    "plan",
    "trace",
    "workload",
]
