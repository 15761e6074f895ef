"""`suffice run`: text from an exported model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from suffice.cli.options import FiguresQuiet, JsonFlag, Prompt, existing
from suffice.cli.terminal import print_json, write_stdout
from suffice.errors import ConfigError


def run(
    export: Annotated[
        Path, Argument(callback=existing, help="Folder that `suffice export` wrote.")
    ],
    prompt: Prompt = "",
    tokens: Annotated[int, Option(help="Maximum tokens to generate.")] = 32,
    temperature: Annotated[
        float, Option(help="Below 1 favours likely tokens; 0 takes the likeliest.")
    ] = 0.0,
    seed: Annotated[int, Option(help="Seed of the sampling.")] = 0,
    as_json: JsonFlag = False,
    quiet: FiguresQuiet = False,
) -> None:
    """Continue a prompt with an exported model, after checking the sha256 of its files.

    An onnx export runs in ONNX Runtime with the tokenizers library; the same code
    (`suffice.runtime`) works where torch is not installed. An hf export is read back and runs
    here.
    """
    from suffice.export.parity import EagerSession
    from suffice.generate import Stopwatch
    from suffice.runtime import Session, Tokenizer, check_files, generate, read
    from suffice.text.tokenizer import TextStream

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
    pieces: list[str] = []
    stream = TextStream(tokenizer, ids, pieces.append if as_json else write_stdout)
    session = EagerSession(export) if manifest["format"] == "hf" else Session(export, manifest)
    if not as_json:
        write_stdout(prompt)
    watch = Stopwatch(lambda row: stream.add(row[0]))
    new = generate(
        session,
        manifest,
        ids,
        on_token=lambda token: watch([token]),
        tokens=tokens,
        temperature=temperature,
        seed=seed,
        stop=() if tokenizer.end is None else (tokenizer.end,),
    )
    stream.close()
    rates = watch.rates(len(ids)) if new else None
    if as_json:
        print_json(
            {
                "prompt": prompt,
                "text": "".join(pieces),
                "prompt_tokens": len(ids),
                "tokens": len(new),
                "prompt_tokens_per_second": rates.prefill if rates else None,
                "tokens_per_second": rates.decode if rates and rates.token_seconds else None,
                "format": manifest["format"],
            }
        )
        return
    write_stdout("\n")
    if not quiet:
        figures = f"; {rates}" if rates else ""
        sys.stderr.write(f"{len(new)} tokens{figures}; {manifest['format']}\n")
