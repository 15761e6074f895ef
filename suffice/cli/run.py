"""`suffice run`: text from an exported model."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from suffice.cli.terminal import Shown
from suffice.errors import ConfigError
from suffice.runtime import Session, Tokenizer, check_files, generate, read
from suffice.runtime.session import Stepper


def run(
    export: Annotated[Path, typer.Argument(help="Folder that `suffice export` wrote.")],
    prompt: Annotated[str, typer.Option(help="Text to go on from.")] = "",
    tokens: Annotated[int, typer.Option(help="To write at most.")] = 32,
    temperature: Annotated[
        float, typer.Option(help="Below 1 is bolder towards likely tokens; 0 takes the likeliest.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
) -> None:
    """Write text behind a prompt with an exported model; its files are checked by sha256 first.

    An onnx export runs in ONNX Runtime with the tokenizers library, without torch; the same code
    works where torch is not installed (`suffice.runtime`). An hf export is read back and runs
    here; a torch export is opened by torch.export.load.
    """
    manifest = read(export)
    check_files(export, manifest)
    if manifest["format"] == "torch":
        raise ConfigError(
            f"{export} is for torch: open it by torch.export.load({manifest['graph']!r}), which "
            "evaluates expressions of the file, so only if you trust who made it; for text export "
            "the model to onnx."
        )
    tokenizer = Tokenizer(export, manifest)
    ids = tokenizer.ids(prompt)
    stop = () if tokenizer.end is None else (tokenizer.end,)
    shown = Shown(tokenizer, ids, _say)
    options = {"tokens": tokens, "temperature": temperature, "seed": seed, "stop": stop}
    session = _session(export, manifest)
    begun = perf_counter()
    _say(prompt)
    found = generate(session, manifest, ids, on_token=shown.add, **options)
    seconds = perf_counter() - begun
    shown.close()
    _say("\n")
    new = len(found)
    sys.stderr.write(f"{new} tokens, {new / seconds:.1f} tokens/s, {manifest['format']}\n")


def _session(export: Path, manifest: dict[str, Any]) -> Stepper:
    """Return what runs the model, which must be one that writes."""
    if manifest["format"] == "hf":
        from suffice.export.parity import EagerSession

        return EagerSession(export)
    return Session(export, manifest)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
