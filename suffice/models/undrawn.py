"""Models on "meta", where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

DRAWS = (Tensor.normal_, Tensor.uniform_)


class Undrawn(TorchFunctionMode):
    """Leave out the first numbers of tensors on "meta" while it is entered.

    Torch would load its compiler for the first of them, which takes seconds.

    Example:
        >>> import torch
        >>> with Undrawn():
        ...     torch.nn.Linear(2, 3, device="meta").weight.shape
        torch.Size([3, 2])
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],  # noqa: ARG002 - torch's signature
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return what is drawn into as it is; call everything else."""
        kwargs = kwargs or {}
        if func in DRAWS or getattr(func, "__module__", "") == "torch.nn.init":
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.device.type == "meta":
                return tensor
        return func(*args, **kwargs)
