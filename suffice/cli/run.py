"""`suffice run`: text from an exported model."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated

from typer import Argument, Option

from suffice.cli.options import Prompt
from suffice.cli.terminal import TextStream, write_stdout
from suffice.errors import ConfigError
from suffice.export.parity import EagerSession
from suffice.runtime import Session, Tokenizer, check_files, generate, read


def run(
    export: Annotated[Path, Argument(help="Folder that `suffice export` wrote.")],
    prompt: Prompt = "",
    tokens: Annotated[int, Option(help="Most tokens to write.")] = 32,
    temperature: Annotated[
        float, Option(help="Below 1 favours likely tokens; 0 takes the likeliest.")
    ] = 0.0,
    seed: Annotated[int, Option(help="Seed of the sampling.")] = 0,
) -> None:
    """Continue a prompt with an exported model, after checking the sha256 of its files.

    An onnx export runs in ONNX Runtime with the tokenizers library; the same code
    (`suffice.runtime`) works where torch is not installed. An hf export is read back and runs
    here. A torch export is opened by torch.export.load.
    """
    manifest = read(export)
    check_files(export, manifest)
    if manifest["format"] == "torch":
        raise ConfigError(
            f"{export} is for torch: open it with torch.export.load({manifest['graph']!r}), which "
            "evaluates expressions in the file, so only if you trust its author; to write text "
            "here, export the model to onnx."
        )
    tokenizer = Tokenizer(export, manifest)
    ids = tokenizer.ids(prompt)
    stream = TextStream(tokenizer, ids, write_stdout)
    session = EagerSession(export) if manifest["format"] == "hf" else Session(export, manifest)
    start = perf_counter()
    write_stdout(prompt)
    new = generate(
        session,
        manifest,
        ids,
        on_token=stream.add,
        tokens=tokens,
        temperature=temperature,
        seed=seed,
        stop=() if tokenizer.end is None else (tokenizer.end,),
    )
    seconds = perf_counter() - start
    stream.close()
    write_stdout("\n")
    rate = f"{len(new) / seconds:.1f} tokens/s"
    sys.stderr.write(f"{len(new)} tokens, {rate}, {manifest['format']}\n")
