"""`suffice export`: a model as files that other programs run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from suffice.errors import ConfigError


def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="Folder of suffice; folder with config.json and safetensors of transformers; or "
            "a .bin of llama2.c."
        ),
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="hf: a class that transformers has; onnx: a graph for ONNX Runtime; torch: a "
            "graph for torch.export.load.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder of what comes out; CHECKPOINT-FORMAT by default.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Of the checkpoint, where it has none beside it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Write a model for other programs, compare it with the model, and list it in manifest.json.

    hf needs nothing of this library where it is loaded: columns become maps and shared heads are
    told, exactly. onnx and torch take tokens, valid and a state as flat inputs, for any batch,
    chunk and past, and return logits and the state; `suffice run` writes text with an onnx or hf
    export. Nothing in the folder is pickled, and it names no place on this machine. It appears
    whole or not at all.
    """
    from suffice.export import export as write

    out = out or checkpoint.with_name(f"{checkpoint.stem or checkpoint.name}-{form}")
    if out.resolve() == checkpoint.resolve():
        raise ConfigError(
            f"--out {out} is the checkpoint itself, which would be lost; give another."
        )
    with Console(stderr=True, quiet=quiet).status("") as shown:
        told = write(
            checkpoint, form, out, tokenizer=tokenizer, step=lambda doing: shown.update(doing)
        )
    if as_json:
        sys.stdout.write(json.dumps(told, indent=1, allow_nan=False) + "\n")
        return
    text = "\n".join(_lines(told, out))
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def _lines(told: dict[str, Any], out: Path) -> list[str]:
    sizes = ((name, one["bytes"]) for name, one in told["files"].items())
    files = [f"{_size(size):>10}  {name}" for name, size in sizes]
    kind = told.get("architecture") or told["graph"]
    checked = told["checked"]
    lines = [
        f"{told['model']} as {kind}, weights in {told['weights']}",
        *files,
        f"largest difference of a logit from the model: {checked['difference']:.1e} in "
        f"{checked['calls']} calls",
    ]
    if told["tokenizer"] is None and told["model"] != "image classifier":
        lines.append("no tokenizer lies beside the checkpoint, so none was written")
    return [*lines, f"export: {out}"]


def _size(size: int) -> str:
    return f"{size / 1e6:,.2f} MB" if size >= 10**5 else f"{size / 1e3:,.1f} kB"  # noqa: PLR2004
