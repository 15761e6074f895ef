"""Whether torch looks into the operations of a function: it compiles or transforms them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


def looked_into(*tensors: Tensor) -> bool:
    """Return whether operations on these tensors are traced, vectorised or forward-differentiated.

    Then they must be ones torch knows, none may depend on numbers, and none may write in place of
    an argument.
    """
    return (
        torch.compiler.is_compiling()
        or forward()
        or any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))
    )


def forward() -> bool:
    """Return whether derivatives are carried along forwards, as torch's fused kernel cannot."""
    return forward_ad._current_level >= 0
