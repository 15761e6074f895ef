"""Who takes a model one token further: native code, or torch."""

from __future__ import annotations

from suffice.errors import ConfigError, unknown
from suffice.generate.writer import Writer
from suffice.memory import Memory
from suffice.models.fusable import why_not
from suffice.models.fused import Fused
from suffice.models.with_torchao import told
from suffice.native import library

IMPLS = ("auto", "native", "torch")


def check_impl(impl: str) -> None:
    """Refuse what is no impl.

    Raises:
        ConfigError: naming those there are.
    """
    if impl not in IMPLS:
        raise unknown("impl", impl, IMPLS)


def stepping(model: Writer, memory: Memory, impl: str) -> tuple[Writer, str]:
    """Return what to step with, and how it steps, in words.

    Args:
        model: the model.
        memory: of its states.
        impl: "auto", "native" or "torch".

    Raises:
        ConfigError: for another impl, or a model that native code is asked for and cannot serve.
    """
    check_impl(impl)
    if isinstance(model, Fused):
        if impl == "torch":
            return model.lm, "torch (asked for)"
        return model, _natively()
    reason = "asked for" if impl == "torch" else why_not(model, memory)
    if not reason:
        return Fused(model, memory), _natively()  # type: ignore[arg-type]
    if impl == "native":
        raise ConfigError(f"impl='native' is not possible: {reason}; give 'auto' or 'torch'.")
    maps = told(model, model.device.type)
    return model, f"torch ({reason})" + (f", {maps}" if maps else "")


def _natively() -> str:
    return f"native ({library.instructions()})"
