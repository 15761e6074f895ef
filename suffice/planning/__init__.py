"""What a training needs before it runs: memory, time and GPUs, found on tensors without content."""

from suffice.planning.devices import DEVICES, Device, device
from suffice.planning.plan import Plan, plan
from suffice.planning.request import Asked, Work, work
from suffice.planning.trace import Trace, trace

__all__ = ["DEVICES", "Asked", "Device", "Plan", "Trace", "Work", "device", "plan", "trace", "work"]
