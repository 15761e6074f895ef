"""`suffice doctor`: check the ops of this machine against the float64 specification."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console

from suffice.cli.options import Device, JsonFlag
from suffice.cli.terminal import print_json, print_paragraph

if TYPE_CHECKING:
    from suffice.testing.oracle import Check


def doctor(device: Device = "cpu", as_json: JsonFlag = False) -> None:
    """Check every op on this device against the specification; exit code 1 if one is wrong."""
    from suffice.testing.oracle import check_ops
    from suffice.train import resolve_device

    place = resolve_device(device)
    if as_json:
        checks = list(check_ops(place))
        print_json({"facts": facts(), "device": str(place), "checks": [_record(c) for c in checks]})
        if any(not check.passed for check in checks):
            sys.exit(1)
        return
    console = Console(highlight=False)
    for name, value in facts().items():
        print_paragraph(console, value, first=f"{name:>14}  ", rest=" " * 16)
    console.print(f"\nops on {place}: outputs and gradients against the float64 specification")
    checks = list(check_ops(place))
    for op, dtype in dict.fromkeys((check.op, check.dtype) for check in checks):
        same = [check for check in checks if (check.op, check.dtype) == (op, dtype)]
        verdict = "ok" if all(check.passed for check in same) else "BAD"
        if all(check.error is None for check in same):
            verdict = "--"  # refused everything
        first = f"{verdict:>5}  {op:<10} {dtype:<9} "
        print_paragraph(console, summary(same), first=first, rest=" " * 7)
    wrong = [check for check in checks if not check.passed]
    for check in wrong:
        print_paragraph(console, str(check), first="wrong: ", rest=" " * 7)
    if wrong:
        console.print("Results of these ops cannot be trusted here.")
        sys.exit(1)


def _record(check: Check) -> dict[str, Any]:
    return {
        "check": str(check),
        "passed": check.passed,
        "error": check.error,
        "refusal": check.refusal,
    }


def facts() -> dict[str, str]:
    """Return the facts of this machine and its software, and which backends it can use."""
    import torch

    from suffice.measure.machine import machine_facts, software_versions
    from suffice.ops.linear import PRESENT, WINS

    machine = {**software_versions(), **machine_facts()}
    memory = machine.pop("memory_bytes")
    machine["memory"] = None if memory is None else f"{memory / 2**30:.1f} GiB"
    machine["gpu"] = machine["gpu"] or f"none: torch {torch.__version__} finds no CUDA device"
    machine["linear maps"] = "oneDNN for large fp32 products"
    if not PRESENT:
        capability = torch.backends.cpu.get_cpu_capability()
        machine["linear maps"] = (
            f"F.linear: the oneDNN path needs AVX-512, this CPU has {capability}"
        )
    elif not WINS:
        machine["linear maps"] = "F.linear: MKL is as fast on Intel's processors"
    machine["native kernels"] = _kernels()
    machine["plans"] = _plans()
    return {name: "unknown" if value is None else str(value) for name, value in machine.items()}


def _kernels() -> str:
    """Return the instruction set that the kernels use, of those present; or why there are none."""
    from suffice.ops.native import library

    if not library.available():
        return f"none: {library.why_not()}; everything runs through torch"
    present = library.library().suffice_isas().decode().split()
    return f"{library.instructions()}, of {', '.join(present)}"


def _plans() -> str:
    """Return on which sets of instructions the choice between ops was measured."""
    from suffice.ops.dispatch import MEASURED
    from suffice.ops.native import library

    if not library.available():
        return "torch's ops alone"
    if library.instructions() in MEASURED:
        return f"as measured with {library.instructions()}"
    measured = ", ".join(MEASURED)
    return f"torch's ops where all keys are seen: native ones were measured with {measured} only"


def summary(checks: Iterable[Check]) -> str:
    """Return the worst error of the checks of one op and dtype, and what was refused and why."""
    checks = list(checks)
    errors = [check.error for check in checks if check.error is not None]
    refusals = [check.refusal for check in checks if check.error is None]
    parts = []
    if errors:
        worst = f"error {max(errors):.1e}, rounding is below {checks[0].tolerance:.0e}"
        parts.append(f"{worst}, {len(errors)} cases")
    if refusals:
        reasons = dict.fromkeys(reason for refusal in refusals for reason in refusal.split("; "))
        parts.append(f"{len(refusals)} refused: {'; '.join(reasons)}")
    return "; ".join(parts)
