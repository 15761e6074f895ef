"""`suffice evaluate`: measure a trained language model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from suffice.cli.options import CHECKPOINT
from suffice.errors import ConfigError

if TYPE_CHECKING:
    from suffice.measure.evaluation import Evaluation


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help=CHECKPOINT)],
    task: Annotated[
        str, typer.Option(help="perplexity, hellaswag, lambada or piqa.")
    ] = "perplexity",
    limit: Annotated[
        int | None, typer.Option(help="The first so many items, or windows; all by default.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="File of the items, or text of the perplexity; the corpus it was trained on by "
            "default, of which it reads the test or validation part."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Measure a language model: each score is named, with its standard error and its items."""
    from suffice.measure.evaluation import evaluate_task, perplexity
    from suffice.models import folder
    from suffice.train import resolve_device, show

    lm, tokenizer, facts = folder.load(checkpoint, resolve_device(device))
    with show(Console(stderr=True), quiet=quiet) as progress:
        progress.cell(task)
        if task == "perplexity":
            text = data or facts.get("corpus")
            if not isinstance(text, str):
                raise ConfigError(f"{checkpoint} names no corpus; name a text by --data.")
            found = perplexity(lm, tokenizer, data=text, limit=limit, step=progress.step)
        else:
            found = evaluate_task(lm, tokenizer, task, data=data, limit=limit, step=progress.step)
    if as_json:
        sys.stdout.write(json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n")
        return
    _print(found)


def _print(found: Evaluation) -> None:
    lines = [f"{found.task}: {found.items:,} of {found.of:,} items, {found.source}"]
    for score in found.scores:
        error = "" if score.standard_error is None else f" +- {score.standard_error:.4f}"
        lines.append(f"  {score.name:<20}{score.value:.4f}{error:<12}  {score.description}")
    Console().print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
