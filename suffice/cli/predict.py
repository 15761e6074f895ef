"""`suffice predict`: the answers of a trained classifier to new rows, texts or images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from suffice.cli.options import Device, existing

BATCH = 64  # as of `suffice.loading`, which help need not import


def predict(
    model: Annotated[
        Path,
        Argument(
            callback=existing,
            help="Folder of a comparison, for its best model; or of one model, such as "
            "runs/mine/efficient-h4-s0.",
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        Argument(
            metavar="FILE...",
            help="A .csv, .tsv or .jsonl (.gz, .xz), a .parquet, hf:ORG/NAME or a folder of "
            "datasets.save_to_disk; images or folders of images; - reads lines of standard input.",
        ),
    ] = None,
    text: Annotated[str | None, Option(help="One text, instead of files.")] = None,
    column: Annotated[
        str | None, Option(help="Column of the texts; that of the training by default.")
    ] = None,
    form: Annotated[
        str, Option("--as", help="What standard input holds: text (a text a line), csv or jsonl.")
    ] = "text",
    encoding: Annotated[
        str, Option(help="Encoding of tables and of standard input, such as latin-1.")
    ] = "utf-8",
    batch: Annotated[
        int | None,
        Option(help=f"Rows computed at once; {BATCH} by default, 1 for standard input."),
    ] = None,
    out: Annotated[
        Path | None, Option(help="File of the answers, .csv or .jsonl; the screen by default.")
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print a line of JSON for each row instead of CSV.")
    ] = False,
    device: Device = "cpu",
) -> None:
    """Label rows of a table, texts or images with a trained model.

    Each row is printed with its prediction, its probability, and the probability of every class.
    Rows are read and answered in batches, so a file may be of any size. Where the table also has
    the column of classes that the model was trained on, the accuracy is printed at the end.
    """
    from suffice.loading import load, locate
    from suffice.loading.loading import WINNER
    from suffice.loading.predictions import PredictionRequest, answer
    from suffice.train import resolve_device
    from suffice.utils.files import read_json

    request = PredictionRequest(
        names=tuple(inputs or ()),
        text=text,
        column=column,
        form=form,
        encoding=encoding,
        batch=batch,
        out=out,
    )
    place = locate(model)
    loaded = load(place, device=resolve_device(device))
    if place != model:
        sys.stderr.write(f"model: {place}\n")
    if (model / WINNER).is_file() and (warning := read_json(model / WINNER).get("warning")):
        sys.stderr.write(f"warning: {warning}\n")
    answer(loaded, request, as_json=as_json)
