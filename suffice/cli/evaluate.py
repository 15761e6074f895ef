"""`suffice evaluate`: measure a trained language model."""

from __future__ import annotations

from typing import Annotated

from rich.console import Console
from typer import Option

from suffice.cli.options import Checkpoint, Device, JsonFlag, Quiet, corpus_name
from suffice.cli.terminal import print_json, print_text


def evaluate(
    checkpoint: Checkpoint,
    limit: Annotated[int | None, Option(help="Use the first windows only; all by default.")] = None,
    data: Annotated[
        str | None,
        Option(
            help="Text, or name of a corpus; by default the test or validation part of the corpus "
            "the model was trained on."
        ),
    ] = None,
    device: Device = "cpu",
    as_json: JsonFlag = False,
    quiet: Quiet = False,
) -> None:
    """Measure a language model's loss, perplexity and bits per byte on a text.

    Tasks such as HellaSwag are scored by lm_eval on the same model, see `suffice.hf`.
    """
    from suffice.measure.evaluation import perplexity
    from suffice.models import folder
    from suffice.train import resolve_device
    from suffice.utils.progress import show

    lm, tokenizer, facts = folder.load(checkpoint, resolve_device(device))
    with show(Console(stderr=True), quiet=quiet) as progress:
        progress.cell("perplexity")
        text = corpus_name(data, facts, option="--data", model=checkpoint)
        result = perplexity(lm, tokenizer, data=text, limit=limit, step=progress.step)
    if as_json:
        print_json(result.to_json())
        return
    print_text(f"{result.task}: {result.items:,} of {result.of:,} items, {result.source}")
    for score in result.scores:
        error = "" if score.standard_error is None else f" +- {score.standard_error:.4f}"
        print_text(f"  {score.name:<20}{score.value:.4f}{error:<12}  {score.description}")
