"""`suffice quantise`: pack a trained language model into fewer bits."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Option

from suffice.cli.options import Checkpoint, JsonFlag, Quiet, check_out, corpus_name, folder_next_to
from suffice.cli.terminal import PLAIN, print_json, print_next, print_text, step_by_cells
from suffice.utils.files import write_json

if TYPE_CHECKING:
    from torch import Tensor

    from suffice.models import LM
    from suffice.quantise import QuantisationReport
    from suffice.text import Tokenizer

REPORT = "quantise.json"
NO_TEXT = "none"
CALIBRATION, TEST = 1 << 15, 1 << 15  # tokens


def quantise(
    checkpoint: Checkpoint,
    bits: Annotated[int, Option(help="Bits of a weight: 16, 8 or 4.")] = 8,
    group: Annotated[
        int | None,
        Option(help="Inputs that share a scale; by default up to 128 in 8 bits and 32 in 4 bits."),
    ] = None,
    calibration: Annotated[
        str | None,
        Option(
            help="Text file, folder or name of a corpus: its training part guides the rounding, "
            "its validation part measures the change; by default the corpus the model was trained "
            f"on; {NO_TEXT} = no text."
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        Option(
            metavar="<str>",
            help="Module to leave unchanged, such as head or blocks.0.*; repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None, Option(help="Folder of the packed model; CHECKPOINT-4bit by default.")
    ] = None,
    as_json: JsonFlag = False,
    quiet: Quiet = False,
) -> None:
    """Pack a model's weights into 8 or 4 bits, or half precision, and measure what that changes.

    The packed model is a folder as `suffice train` writes it: `suffice generate` and `suffice
    evaluate` read it, also on machines without the native kernels. The report lies in it.
    """
    from suffice.models import folder
    from suffice.quantise import quantise as quantise_model
    from suffice.utils.progress import show

    out = out or folder_next_to(checkpoint, f"{bits}bit")
    check_out(out, checkpoint=checkpoint)
    folder.check_replaceable(out)
    lm, tokenizer, facts = folder.load(checkpoint)
    lm.float()
    texts = _texts(lm, tokenizer, calibration, facts, checkpoint)
    with show(Console(stderr=True), cells=1 + len(texts), quiet=quiet) as progress:
        step = step_by_cells(progress)
        report = quantise_model(lm, bits, group, **texts, skip=tuple(skip or ()), step=step)
    if "measured" in facts:
        facts["measured_before_packing"] = facts.pop("measured")
    with folder.replacing_model(out) as new:
        folder.save(new, lm, tokenizer, **facts)
        write_json(new / REPORT, report.to_json())
    if as_json:
        print_json(report.to_json())
    else:
        _print(report, out)


def _texts(
    lm: LM, tokenizer: Tokenizer, name: str | None, facts: dict[str, Any], checkpoint: Path
) -> dict[str, Tensor]:
    from suffice.quantise.report import rows_of
    from suffice.text import corpus

    if name == NO_TEXT:
        return {}
    option = f"--calibration (or give --calibration {NO_TEXT})"
    text = corpus(corpus_name(name, facts, option=option, model=checkpoint))

    def rows(documents: Iterable[str], tokens: int) -> Tensor:
        return rows_of(documents, tokenizer, length=lm.config.length + 1, tokens=tokens)

    return {"calibration": rows(text.train, CALIBRATION), "judged": rows(text.validation, TEST)}


def _print(report: QuantisationReport, out: Path) -> None:
    from suffice.ops.native import library

    alike = defaultdict(list)  # the same map of every block is one row
    for layer in report.layers:
        name = re.sub(r"\.\d+(?=\.)", ".*", layer.name)
        alike[name, layer.scheme, layer.kernel, layer.skipped].append(layer)
    columns = ("maps", "name", "stored as", "by", "kB before", "after", "error, most")
    table = Table(*columns, **PLAIN)
    for (name, scheme, kernel, skipped), maps in alike.items():
        if not skipped:
            bytes_ = (sum(m.bytes_before for m in maps), sum(m.bytes_after for m in maps))
            sizes = (f"{size / 1e3:,.1f}" for size in bytes_)
            error = max(m.error for m in maps)
            table.add_row(str(len(maps)), name, scheme, kernel, *sizes, f"{error:.2%}")
    Console().print(table)
    for (name, _, _, skipped), maps in alike.items():
        if skipped:
            print_text(f"not packed: {len(maps)} x {name}, {skipped}")
    print_text(
        f"{report.bytes_before / 1e6:,.2f} MB before, {report.bytes_after / 1e6:,.2f} MB after "
        f"({report.bytes_after / report.bytes_before:.0%})"
    )
    if report.change is None:
        print_text("no text was read: rounded without calibration, the change was not measured")
    else:
        change = report.change
        print_text(
            f"perplexity {change.perplexity_before:.4f} -> {change.perplexity_after:.4f} "
            f"({change.increase:+.2%}), divergence {change.divergence:.5f} nats per token, on "
            f"{change.tokens:,} tokens of validation text; {report.calibration_tokens:,} tokens of "
            "training text for rounding"
        )
    if not library.available():
        print_text(
            f"no native kernels: {library.why_not()}; torch unpacks every matrix at each call"
        )
    print_text(f"model: {out}")
    print_next(f"suffice generate {quote(str(out))}", f"suffice bench {quote(str(out))}")
