"""`suffice doctor`: what runs here, checked against the float64 specification."""

from __future__ import annotations

import sys
from typing import Annotated

import torch
import typer
from rich.console import Console


def doctor(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Check every op on this device against the specification; exit code 1 if one is wrong."""
    from suffice.measure.machine import machine_facts, software_versions
    from suffice.ops.linear import PRESENT
    from suffice.testing.oracle import check_ops
    from suffice.train import resolve_device

    place = resolve_device(device)
    console = Console(highlight=False)
    facts = {**software_versions(), **machine_facts()}
    for name, value in facts.items():
        console.print(f"{name:>14}  {value}", markup=False)
    capability = torch.backends.cpu.get_cpu_capability()
    words = "oneDNN for large fp32 products" if PRESENT else f"F.linear (no AVX-512: {capability})"
    console.print(f"{'linear maps':>14}  {words}", markup=False)
    console.print(f"{'native kernels':>14}  none in this version: every op runs through torch")
    if not torch.cuda.is_available():
        console.print(f"{'cuda':>14}  torch {torch.__version__} finds no CUDA device")
    wrong = 0
    console.print(f"\nops on {place} against the float64 specification:")
    for check in check_ops(place):
        wrong += not check.passed
        console.print(f"  {'ok ' if check.passed else 'BAD'} {check}", markup=False)
    if wrong:
        console.print(f"{wrong} checks failed: results of these ops cannot be trusted here.")
        sys.exit(1)
