"""`suffice doctor`: check the ops of this machine against the float64 specification."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console

from suffice.cli.options import Device, JsonFlag
from suffice.cli.terminal import print_json, print_paragraph

if TYPE_CHECKING:
    from suffice.testing.oracle import Check


def doctor(device: Device = "cpu", as_json: JsonFlag = False) -> None:
    """Check every op on this device against the specification; exit code 1 if one is wrong.

    The first line is the result. --json lists every case, and why an op does not compute it.
    """
    from suffice.testing.oracle import check_ops
    from suffice.train import resolve_device

    place = resolve_device(device)
    with Console(stderr=True).status(f"checking every op on {place}"):
        checks = list(check_ops(place))
    wrong = [check for check in checks if not check.passed]
    if as_json:
        print_json({"facts": facts(), "device": str(place), "checks": [_record(c) for c in checks]})
    else:
        _print(Console(highlight=False), str(place), checks, wrong)
    if wrong:
        sys.exit(1)


def _print(console: Console, device: str, checks: list[Check], wrong: list[Check]) -> None:
    machine, ops = facts(), list(dict.fromkeys(check.op for check in checks))
    result = f"all ops right on {device}"
    if wrong:
        names = ", ".join(dict.fromkeys(check.op for check in wrong))
        result = f"WRONG on {device}: {names}; do not trust results of these ops here"
    print_paragraph(console, f"{result}; native kernels: {machine['native kernels']}")
    for check in wrong:
        print_paragraph(console, str(check), first="wrong: ", rest=" " * 7)
    console.print("\nlargest error of outputs and gradients, in percent of the tolerance")
    for op in ops:
        console.print(f"{op:>17}  {_errors([check for check in checks if check.op == op])}")
    console.print()
    for name, value in machine.items():
        print_paragraph(console, value, first=f"{name:>17}  ", rest=" " * 19)


def _errors(checks: list[Check]) -> str:
    shares: dict[str, list[float]] = {}
    for check in checks:
        if check.error is not None:
            shares.setdefault(check.dtype, []).append(check.error / check.tolerance)
    shown = [f"{dtype} {max(of):.0%} ({len(of)} cases)" for dtype, of in shares.items()]
    return ", ".join(shown) or "not for this device"


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

    from suffice.ops.linear import PRESENT, WINS
    from suffice.utils.machine import machine_facts, software_versions

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
    from suffice.ops.native import library

    if not library.available():
        return f"none: {library.why_not()}; everything runs through torch"
    present = library.library().suffice_isas().decode().split()
    return f"{library.instructions()}, of {', '.join(present)}"


def _plans() -> str:
    from suffice.ops.dispatch import MEASURED
    from suffice.ops.native import library

    if not library.available():
        return "torch's ops alone"
    if library.instructions() in MEASURED:
        return f"as measured with {library.instructions()}"
    measured = ", ".join(MEASURED)
    return f"torch's ops where all keys are seen: native ones were measured with {measured} only"
