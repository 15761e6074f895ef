"""`suffice doctor`: what runs here, checked against the float64 specification."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from rich.console import Console

from suffice.cli.terminal import write

if TYPE_CHECKING:
    from suffice.testing.oracle import Check


def doctor(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Check every op on this device against the specification; exit code 1 if one is wrong."""
    from suffice.testing.oracle import check_ops
    from suffice.train import resolve_device

    place = resolve_device(device)
    console = Console(highlight=False)
    for name, value in facts().items():
        write(console, value, first=f"{name:>14}  ", rest=" " * 16)
    console.print(f"\nops on {place}: outputs and gradients against the float64 specification")
    checks = list(check_ops(place))
    for op, dtype in dict.fromkeys((check.op, check.dtype) for check in checks):
        chosen = [check for check in checks if (check.op, check.dtype) == (op, dtype)]
        verdict = "ok" if all(check.passed for check in chosen) else "BAD"
        if all(check.error is None for check in chosen):
            verdict = "--"  # it serves none of them here
        write(console, summary(chosen), first=f"{verdict:>5}  {op:<10} {dtype:<9} ", rest=" " * 7)
    wrong = [check for check in checks if not check.passed]
    for check in wrong:
        write(console, str(check), first="wrong: ", rest=" " * 7)
    if wrong:
        console.print("Results of these ops cannot be trusted here.")
        sys.exit(1)


def facts() -> dict[str, str]:
    """Return what this machine and its software are, and which backends serve."""
    from suffice.measure.machine import machine_facts, software_versions
    from suffice.ops.linear import PRESENT, WINS

    found = {**software_versions(), **machine_facts()}
    memory = found.pop("memory_bytes")
    found["memory"] = None if memory is None else f"{memory / 2**30:.1f} GiB"
    found["gpu"] = found["gpu"] or f"none: torch {torch.__version__} finds no CUDA device"
    capability = torch.backends.cpu.get_cpu_capability()
    found["linear maps"] = "oneDNN for large fp32 products"
    if not PRESENT:
        found["linear maps"] = f"F.linear: the oneDNN path needs AVX-512, this CPU has {capability}"
    elif not WINS:
        found["linear maps"] = "F.linear: MKL is as fast on Intel's processors"
    found["native kernels"] = _kernels()
    return {name: "unknown" if value is None else str(value) for name, value in found.items()}


def _kernels() -> str:
    """Return which instructions the kernels use, of those there are; or why there are none."""
    from suffice.ops.native import library

    if not library.available():
        return f"none: {library.why_not()}; everything runs through torch"
    present = library.library().suffice_isas().decode().split()
    return f"{library.instructions()}, of {', '.join(present)}"


def summary(checks: Iterable[Check]) -> str:
    """Tell of the checks of one op and dtype: the worst error, and what was refused and why."""
    checks = list(checks)
    errors = [check.error for check in checks if check.error is not None]
    refused = [check.refusal for check in checks if check.error is None]
    parts = []
    if errors:
        worst = f"error {max(errors):.1e}, rounding is below {checks[0].tolerance:.0e}"
        parts.append(f"{worst}, {len(errors)} cases")
    if refused:
        reasons = dict.fromkeys(reason for told in refused for reason in told.split("; "))
        parts.append(f"{len(refused)} refused: {'; '.join(reasons)}")
    return "; ".join(parts)
