"""What a training needs before it runs: memory, time and GPUs, counted on fake tensors."""

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
