"""Torch helpers: non-finite values, inference tensors, shape checks, threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from suffice.errors import ConfigError, MaskError, ShapeError, StateError
from suffice.utils.records import is_whole

T = TypeVar("T")


def readable(*tensors: Tensor) -> bool:
    """Return whether code may branch on the content of tensors, and cache what follows from it.

    Not on a GPU, which would have to wait, on meta tensors, in compiled graphs, or in `torch.func`.
    """
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(t.device.type == "cpu" for t in tensors)


def finite(*tensors: Tensor) -> bool:
    """Return False if one of the tensors holds a NaN or an Inf; True where not `readable`.

    It costs one pass. A product gives a hidden number the weight 0, but 0 * NaN is NaN.
    """
    if not readable(*tensors):
        return True
    exact = torch.promote_types(tensors[0].dtype, torch.float32)  # sums of half overflow
    return all(bool(t.detach().sum(dtype=exact).isfinite()) for t in tensors)


def usable(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return tensors that may be written and differentiated: inference tensors are copied."""
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return tensors
    return tuple(x.clone() if x.is_inference() else x for x in tensors)


Shape = tuple[int | None, ...]


def spell(shape: Shape) -> str:
    """Write a shape for a message, with * for a free size: "[2, *, 8]"."""
    return "[" + ", ".join("*" if n is None else str(n) for n in shape) + "]"


def check(name: str, tensor: Tensor, *legal: Shape, hint: str = "") -> None:
    """Raise ShapeError unless the tensor has one of the legal shapes; None is any size."""
    if not isinstance(tensor, Tensor):
        raise ShapeError(f"{name} is a {type(tensor).__name__}; give a tensor. {hint}".rstrip())
    if tensor.is_nested or tensor.layout is not torch.strided:
        form = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise ShapeError(f"{name} is a {form} tensor; give a dense one. {hint}".rstrip())
    for shape in legal:
        if tensor.dim() == len(shape) and all(
            n is None or n == m for n, m in zip(shape, tensor.shape, strict=True)
        ):
            return
    fits = " or ".join(spell(shape) for shape in legal)
    message = f"{name} has shape {spell(tuple(tensor.shape))}; legal: {fits}."
    raise ShapeError(f"{message} {hint}".rstrip())


def check_mask(name: str, mask: Tensor) -> None:
    """Raise MaskError, naming the converters, unless the mask is a boolean tensor."""
    if not isinstance(mask, Tensor):
        raise MaskError(
            f"{name} is a {type(mask).__name__}; give a boolean tensor, True = may attend."
        )
    if mask.dtype is not torch.bool:
        raise MaskError(
            f"{name} has dtype {mask.dtype}; a mask is boolean, True = may attend. Other libraries "
            "would read numbers as an additive mask: convert with suffice.masks.from_additive, "
            "from_hf (1 = attend) or from_torch_mha (True = ignore)."
        )


MAX_THREADS = 4096


def threads(n: int | None = None) -> int:
    """Return the number of threads that torch and the native kernels use, set to n if it is given.

    The kernels always use torch's number, so `torch.set_num_threads` and OMP_NUM_THREADS do the
    same. For a single sequence, more threads than physical cores do not help.

    Args:
        n: threads from now on, of the whole process; None changes nothing.

    Raises:
        ConfigError: if n is not a whole number of 1 to 4,096.

    Example:
        >>> threads() == torch.get_num_threads()
        True
    """
    if n is not None:
        if not is_whole(n, least=1) or n > MAX_THREADS:
            raise ConfigError(
                f"threads({n!r}): give 1 to {MAX_THREADS:,}, or no argument to read the number."
            )
        torch.set_num_threads(n)
    return torch.get_num_threads()


FORKED = False  # whether this process is a copy of one whose threads had computed


def refuse_fork() -> None:
    """Raise StateError in a fork of a process with threads: OpenMP would wait for them for ever."""
    if FORKED and torch.get_num_threads() > 1:
        raise StateError(
            "this process was forked from one that had computed with several threads, whose "
            "threads it lacks: start it by multiprocessing.get_context('spawn'), or call "
            "suffice.threads(1) in it."
        )


def _note_fork() -> None:
    """Note, before a fork, whether there are threads that Python did not start."""
    global _computed
    try:
        _computed = len(os.listdir("/proc/self/task")) > threading.active_count()
    except OSError:  # no Linux
        _computed = torch.get_num_threads() > 1


def _begin_forked() -> None:
    global FORKED
    FORKED = FORKED or _computed


_computed = False
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_note_fork, after_in_child=_begin_forked)


def constant_when_traced(function: Callable[[], T]) -> Callable[[], T]:
    """Let torch.compile call a function while it traces, and keep what it returns.

    `torch.compiler.assume_constant_result` without its import of the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
