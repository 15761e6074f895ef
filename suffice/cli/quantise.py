"""`suffice quantise`: pack a trained language model into fewer bits."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from suffice.cli.options import CHECKPOINT
from suffice.errors import CheckpointError, ConfigError
from suffice.files import replacing
from suffice.ops.native import library

if TYPE_CHECKING:
    from torch import Tensor

    from suffice.models import LM
    from suffice.quantise import Report
    from suffice.text import Tokenizer

REPORT = "quantise.json"
WITHOUT = "none"
CALIBRATION, JUDGED = 1 << 15, 1 << 15  # tokens


def quantise(
    checkpoint: Annotated[Path, typer.Argument(help=CHECKPOINT)],
    bits: Annotated[int, typer.Option(help="Of a weight: 16, 8 or 4.")] = 8,
    group: Annotated[
        int | None,
        typer.Option(help="Inputs with one scale; up to 128 in 8 bits, 32 in 4 bits by default."),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            help="Text, a folder or a corpus' name, of which the training part is read to round "
            "well and the validation part to measure the change; the corpus it was trained on by "
            f"default; {WITHOUT} = no text."
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<str>",
            help="Module to leave as it is, such as head or blocks.0.*; repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the packed model; CHECKPOINT-4bit by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Pack a model's weights into 8 or 4 bits, or half precision, and tell what that changes.

    The packed model is a folder as `suffice train` writes it: `suffice generate` and `suffice
    evaluate` take it, on machines without the native kernels, too. The report lies beside it.
    """
    from suffice.cli.terminal import as_cells
    from suffice.models import folder
    from suffice.quantise import Speed
    from suffice.quantise import quantise as pack
    from suffice.quantise.report import tokens_per_second
    from suffice.train import show

    out = out or checkpoint.with_name(f"{checkpoint.name}-{bits}bit")
    _check_out(checkpoint, out)
    lm, tokenizer, facts = folder.load(checkpoint)
    lm.float()
    texts = _texts(lm, tokenizer, calibration, facts, checkpoint)
    with show(Console(stderr=True), cells=1 + len(texts), quiet=quiet) as progress:
        before = tokens_per_second(lm)
        step = as_cells(progress)
        report = pack(lm, bits, group, **texts, skip=tuple(skip or ()), step=step)
        speed = Speed(before=before, after=tokens_per_second(lm), threads=torch.get_num_threads())
    report = replace(report, speed=speed)
    if "measured" in facts:
        facts["measured_before_packing"] = facts.pop("measured")
    folder.save(out, lm, tokenizer, **facts)
    text = json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n"
    _write(out / REPORT, text)
    if as_json:
        sys.stdout.write(text)
        return
    _print(report, out)


def _check_out(checkpoint: Path, out: Path) -> None:
    if out.resolve() == checkpoint.resolve():
        raise ConfigError(f"--out {out} is the model itself, which would be lost; give another.")


def _texts(
    lm: LM, tokenizer: Tokenizer, named: str | None, facts: dict[str, Any], checkpoint: Path
) -> dict[str, Tensor]:
    """Return the rows that the rounding reads and those that judge it."""
    from suffice.quantise.report import rows_of
    from suffice.text import corpus

    if named == WITHOUT:
        return {}
    text = named or facts.get("corpus")
    if not isinstance(text, str):
        raise ConfigError(
            f"{checkpoint} names no corpus; name a text by --calibration, or go without one by "
            f"--calibration {WITHOUT}."
        )
    found = corpus(text)

    def rows(documents: Iterable[str], tokens: int) -> Tensor:
        return rows_of(documents, tokenizer, length=lm.config.length + 1, tokens=tokens)

    return {
        "calibration": rows(found.train, CALIBRATION),
        "judged": rows(found.validation, JUDGED),
    }


def _write(path: Path, text: str) -> None:
    try:
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="ascii", newline="\n")
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path} ({error.strerror or error}); free space, or give another --out."
        ) from error


def _print(report: Report, out: Path) -> None:
    console = Console()
    columns = ("map", "stored as", "by", "kB before", "after", "error")
    table = Table(*columns, box=None, pad_edge=False)
    for layer in (layer for layer in report.layers if not layer.skipped):
        sizes = (f"{size / 1e3:,.1f}" for size in (layer.bytes_before, layer.bytes_after))
        table.add_row(layer.name, layer.scheme, layer.kernel, *sizes, f"{layer.error:.2%}")
    console.print(table)
    for layer in (layer for layer in report.layers if layer.skipped):
        told = f"not packed: {layer.name}, {layer.skipped}"
        console.print(told, markup=False, highlight=False, soft_wrap=True)
    share = report.bytes_after / report.bytes_before
    told = [
        f"{report.bytes_before / 1e6:,.2f} MB before, {report.bytes_after / 1e6:,.2f} MB after "
        f"({share:.0%})"
    ]
    if report.change is None:
        told.append("no text was read: rounded by the weights alone, the change not measured")
    else:
        one = report.change
        told.append(
            f"perplexity {one.perplexity_before:.4f} -> {one.perplexity_after:.4f} "
            f"({one.increase:+.2%}), divergence {one.divergence:.5f} nats per token, on "
            f"{one.tokens:,} tokens of validation text; {report.calibration_tokens:,} tokens of "
            "training text for rounding"
        )
    if report.speed is not None:
        threads = report.speed.threads
        told.append(f"decode on {threads} thread{'s' * (threads > 1)}: {report.speed.summary}")
    if not library.available():
        told.append(
            f"no native kernels: {library.why_not()}; torch unpacks every matrix at each call"
        )
    told.append(f"model: {out}")
    console.print("\n".join(told), markup=False, highlight=False, soft_wrap=True)
