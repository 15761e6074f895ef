"""`suffice generate`: text from a trained language model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from suffice.cli.options import (
    Checkpoint,
    Device,
    FiguresQuiet,
    JsonFlag,
    MemoryBits,
    MemoryOption,
    Prompt,
    check_at_least,
    options_from_fields,
    parse_memory,
)
from suffice.cli.terminal import print_json, write_stdout
from suffice.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from suffice.generate import Sampling
    from suffice.models import LM
    from suffice.text import Tokenizer
    from suffice.text.tokenizer import TextStream

NEW_TOKENS = 256
TEMPERATURE = 0.8
FILTERS = ("top_k", "top_p", "min_p")  # options that leave out unlikely tokens


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How the next token is chosen; None where an option is not given."""

    temperature: Annotated[
        float | None,
        Option(
            help=f"Below 1 favours likely tokens, 0 takes the likeliest; {TEMPERATURE} by default."
        ),
    ] = None
    top_k: Annotated[int | None, Option(help="Sample from the K likeliest tokens.")] = None
    top_p: Annotated[
        float, Option(help="Sample from the fewest tokens whose probabilities reach this.")
    ] = 1.0
    min_p: Annotated[
        float, Option(help="Keep tokens at least this fraction as likely as the top token.")
    ] = 0.0
    seed: Annotated[int, Option(help="Seed of the sampling.")] = 0

    def choose(self, *, beams: int = 1) -> Sampling:
        """Return the choice of tokens; options that a choice without sampling ignores are refused.

        Args:
            beams: beams of a search; 1 = sampling, or the likeliest token at temperature 0.
        """
        from suffice.generate import Greedy, Sample

        if beams == 1 and self.temperature != 0.0:
            temperature = TEMPERATURE if self.temperature is None else self.temperature
            filters = {name: getattr(self, name) for name in FILTERS}
            return Sample(temperature=temperature, **filters, seed=self.seed)
        default = SamplingOptions()
        unused = [
            f"--{name.replace('_', '-')}"
            for name in FILTERS
            if getattr(self, name) != getattr(default, name)
        ]
        if self.temperature:
            unused.append("--temperature")
        if unused:
            greedy = "--temperature 0" if beams == 1 else f"--beams {beams}"
            raise ConfigError(
                f"{' and '.join(unused)} with {greedy}, which does not sample; leave one out."
            )
        return Greedy()


@options_from_fields
def generate(
    checkpoint: Checkpoint,
    prompt: Prompt = "",
    tokens: Annotated[
        int | None,
        Option(help=f"Maximum new tokens; {NEW_TOKENS} by default, or what --memory holds."),
    ] = None,
    *,
    sampling: SamplingOptions,
    memory: MemoryOption = "dynamic",
    quantise_memory: MemoryBits = None,
    beams: Annotated[int, Option(help="Beam search with this many beams; excludes sampling.")] = 1,
    draft: Annotated[
        Path | None,
        Option(help="Folder of a smaller model that proposes tokens (speculative decoding)."),
    ] = None,
    device: Device = "cpu",
    impl: Annotated[
        str, Option(help="auto, native (CPU kernels; an error without them) or torch.")
    ] = "auto",
    as_json: JsonFlag = False,
    quiet: FiguresQuiet = False,
) -> None:
    """Continue a prompt token by token; the prompt is printed first.

    Where a model's positions end, as learned ones do, the context slides: the text goes on behind
    its latest half.
    """
    from suffice.generate import Stopwatch, slide
    from suffice.generate import generate as generate_tokens
    from suffice.generate.decoding import choose_backend
    from suffice.generate.generate import max_length
    from suffice.models import folder
    from suffice.text.tokenizer import prompt_ids
    from suffice.train import resolve_device

    check_at_least(1, tokens=tokens, beams=beams)
    choice = sampling.choose(beams=beams)
    cache, place = parse_memory(memory, quantise_memory), resolve_device(device)
    lm, tokenizer, _ = folder.load(checkpoint, place)
    draft_lm = None if draft is None else _load_draft(draft, place, tokenizer)
    ids = prompt_ids(tokenizer, prompt)
    stop = () if tokenizer.end is None else (tokenizer.end,)
    pieces: list[str] = []
    stream = _stream(tokenizer, ids, pieces, None if as_json else prompt)

    def add(row: list[int | None]) -> None:
        if row[0] is not None and row[0] not in stop:  # the row has not ended
            stream.add(row[0])

    room = max_length(lm)
    if tokens is None:
        held = NEW_TOKENS if cache.capacity is None else cache.capacity - len(ids) + 1
        tokens = max(1, min(NEW_TOKENS, held))
    if draft_lm is None:
        lm, steps = choose_backend(lm, cache, impl)  # rates do not include its set-up
    options = {"stop": stop, "memory": cache, "draft": draft_lm, "impl": impl}
    watch = Stopwatch(add)
    if beams > 1:
        result = generate_tokens(lm, [ids], max_new_tokens=tokens, beams=beams, **options)
        written, steps = result.row(0)[len(ids) :], result.steps
        for token in written:
            watch([token])
    else:
        written = slide(lm, ids, max_new_tokens=tokens, sampling=choice, on_token=watch, **options)
        steps = "speculative" if draft_lm is not None else steps
    stream.close()
    if not as_json:
        write_stdout("\n")
    slid = room is not None and len(ids) + len(written) - 1 > room
    rates = watch.rates(len(ids) if room is None else min(len(ids), room))
    if as_json:
        print_json(
            {
                "prompt": prompt,
                "text": "".join(pieces),
                "prompt_tokens": rates.prompt,
                "tokens": len(written),
                "prompt_tokens_per_second": rates.prefill,
                "tokens_per_second": rates.decode if rates.token_seconds else None,
                "steps": steps,
                "positions": room,
                "slid": slid,
            }
        )
    elif not quiet:
        figures = "" if beams > 1 else f"; {rates}"
        end = f"; the context slid: the model has {room} positions" if slid else ""
        sys.stderr.write(f"{len(written)} tokens{figures}; steps: {steps}{end}\n")


def _load_draft(path: Path, device: torch.device, tokenizer: Tokenizer) -> LM:
    from suffice.models import folder

    lm, other, _ = folder.load(path, device)
    if other.fingerprint != tokenizer.fingerprint:
        raise ConfigError(
            f"--draft {path} has another tokenizer than the model; give a model that was trained "
            "with the same one."
        )
    return lm


def _stream(
    tokenizer: Tokenizer, ids: list[int], pieces: list[str], prompt: str | None
) -> TextStream:
    """Return the stream that collects the text and, after the prompt unless None, prints it."""
    from suffice.text.tokenizer import TextStream

    def write(text: str) -> None:
        if prompt is not None:
            write_stdout(text if pieces else prompt + text)
        pieces.append(text)

    return TextStream(tokenizer, ids, write)
