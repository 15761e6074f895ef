"""What turns query-key products into weights."""

from __future__ import annotations

from typing import ClassVar

from suffice.axis import Axis


class Kernel(Axis, family="kernel"):
    """Base of the kernels."""

    weighs_pairs: ClassVar[bool] = True
    """True if every query-key pair gets a weight of its own, as a softmax gives it."""
