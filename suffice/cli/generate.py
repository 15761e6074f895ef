"""`suffice generate`: text from a trained language model."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from suffice.cli.options import CHECKPOINT, LEGAL, memory_of
from suffice.cli.terminal import Shown
from suffice.errors import ConfigError

if TYPE_CHECKING:
    from suffice.generate import Sampling
    from suffice.text import Tokenizer

NEW = 256  # tokens, where the model has room for them
TEMPERATURE = 0.8


def generate(
    checkpoint: Annotated[Path, typer.Argument(help=CHECKPOINT)],
    prompt: Annotated[str, typer.Option(help="Text to go on from.")] = "",
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            help=f"Tokens to write at most; by default {NEW}, or what the model's positions allow."
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Below 1 is bolder towards likely tokens; 0 takes the likeliest; "
            f"{TEMPERATURE} by default."
        ),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the K likeliest tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Draw from the fewest likely tokens of this share.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Draw from tokens at least this share of the likeliest one.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    memory: Annotated[str, typer.Option(help=f"What is kept of the text: {LEGAL}.")] = "dynamic",
    quantise_memory: Annotated[
        int | None, typer.Option(help="Keep it in 8 or 4 bits a number.")
    ] = None,
    beams: Annotated[
        int, typer.Option(help="Search the likeliest text with so many beams; takes no draws.")
    ] = 1,
    draft: Annotated[
        Path | None, typer.Option(help="Folder of a smaller model that proposes tokens.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    impl: Annotated[
        str, typer.Option(help="auto, native (kernels for CPUs; else an error) or torch.")
    ] = "auto",
) -> None:
    """Write text behind a prompt, token by token; the prompt comes first."""
    from suffice.generate import generate as write
    from suffice.generate.generate import token_budget
    from suffice.models import folder
    from suffice.train import resolve_device

    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    sampling = _sampling(options, seed, beams)
    kept, place = memory_of(memory, quantise_memory), resolve_device(device)
    lm, tokenizer, _ = folder.load(checkpoint, place)
    small = None
    if draft is not None:
        small, other, _ = folder.load(draft, place)
        if other.fingerprint != tokenizer.fingerprint:
            raise ConfigError(f"{draft} has another tokenizer than {checkpoint}; give one alike.")
    ids = _ids(tokenizer, prompt)
    stop = () if tokenizer.end is None else (tokenizer.end,)
    left = [prompt]  # said with the first token, so that nothing stands before a refusal

    def say(text: str) -> None:
        _say("".join(left) + text)
        left.clear()

    shown = Shown(tokenizer, ids, say)

    def tell(tokens: list[int | None]) -> None:
        if tokens[0] not in (None, *stop):
            shown.add(tokens[0])

    new = max_new_tokens
    if new is None:
        ends = [token_budget(one, kept, len(ids)) for one in (lm, small) if one]
        new = max(1, min([NEW, *(end for end in ends if end is not None)]))
    sizes = {"max_new_tokens": new, "sampling": sampling, "stop": stop, "beams": beams}
    begun = perf_counter()
    found = write(
        lm,
        [ids],
        **sizes,
        memory=kept,
        draft=small,
        on_token=tell if beams == 1 else None,
        impl=impl,
    )
    seconds = perf_counter() - begun
    if beams > 1:
        for token in found.row(0)[len(ids) :]:
            tell([token])
    shown.close()
    say("\n")
    written = found.lengths[0]
    end = "; no more positions" if max_new_tokens is None and written == new < NEW else ""
    rate = f"{written / seconds:.1f} tokens/s"
    sys.stderr.write(f"{written} tokens, {rate}, steps: {found.steps}{end}\n")


def _sampling(options: dict[str, float | int | None], seed: int, beams: int) -> Sampling:
    """Return how tokens are chosen; what greedy choice has no use for is refused."""
    from suffice.generate import Greedy, Sample

    heat = options["temperature"]
    if beams == 1 and heat != 0.0:
        return Sample(
            **{**options, "temperature": TEMPERATURE if heat is None else heat}, seed=seed
        )
    default = {"top_k": None, "top_p": 1.0, "min_p": 0.0}
    given = [f"--{name.replace('_', '-')}" for name in default if options[name] != default[name]]
    if heat:
        given.append("--temperature")
    if given:
        why = "--temperature 0" if beams == 1 else f"--beams {beams}"
        raise ConfigError(f"{' and '.join(given)} with {why}, which draws nothing; leave one out.")
    return Greedy()


def _ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the ids of a prompt, the token that begins a document before it."""
    first = tokenizer.begin
    ids = [*([] if first is None else [first]), *tokenizer.encode(prompt)]
    if not ids and tokenizer.end is not None:
        return [tokenizer.end]  # what stands before a document stands behind another
    if not ids:
        raise ConfigError("--prompt is empty, and no token begins a text here; give some text.")
    return ids


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
