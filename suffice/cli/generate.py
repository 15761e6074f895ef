"""`suffice generate`: text from a trained language model."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

from typer import Option

from suffice.cli.options import Checkpoint, Device, MemoryBits, MemoryOption, Prompt, parse_memory
from suffice.cli.terminal import TextStream, write_stdout
from suffice.errors import ConfigError
from suffice.generate import Greedy, Sample, Sampling
from suffice.generate import generate as generate_tokens
from suffice.generate.generate import token_budget
from suffice.models import folder
from suffice.text import Tokenizer
from suffice.train import resolve_device

NEW_TOKENS = 256  # by default, where the model has room for them
TEMPERATURE = 0.8


def generate(
    checkpoint: Checkpoint,
    prompt: Prompt = "",
    max_new_tokens: Annotated[
        int | None,
        Option(
            help=f"Most tokens to write; {NEW_TOKENS} by default, fewer if the model's positions "
            "end before."
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        Option(
            help=f"Below 1 favours likely tokens, 0 takes the likeliest; {TEMPERATURE} by default."
        ),
    ] = None,
    top_k: Annotated[int | None, Option(help="Sample from the K likeliest tokens.")] = None,
    top_p: Annotated[
        float, Option(help="Sample from the fewest tokens whose probabilities reach this.")
    ] = 1.0,
    min_p: Annotated[
        float, Option(help="Sample from tokens with this share of the likeliest's odds.")
    ] = 0.0,
    seed: Annotated[int, Option(help="Seed of the sampling.")] = 0,
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
) -> None:
    """Continue a prompt token by token; the prompt is printed first."""
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    sampling = _sampling(temperature, filters, seed, beams)
    cache, place = parse_memory(memory, quantise_memory), resolve_device(device)
    lm, tokenizer, _ = folder.load(checkpoint, place)
    draft_lm = None
    if draft is not None:
        draft_lm, draft_tokenizer, _ = folder.load(draft, place)
        if draft_tokenizer.fingerprint != tokenizer.fingerprint:
            raise ConfigError(
                f"--draft {draft} has another tokenizer than {checkpoint}; give a model that was "
                "trained with the same one."
            )
    ids = _prompt_ids(tokenizer, prompt)
    stop = () if tokenizer.end is None else (tokenizer.end,)
    output = _Output(prompt, tokenizer, ids, stop)
    limit = max_new_tokens
    if limit is None:
        budgets = [token_budget(model, cache, len(ids)) for model in (lm, draft_lm) if model]
        limit = max(1, min([NEW_TOKENS, *(each for each in budgets if each is not None)]))
    start = perf_counter()
    result = generate_tokens(
        lm,
        [ids],
        max_new_tokens=limit,
        sampling=sampling,
        stop=stop,
        beams=beams,
        memory=cache,
        draft=draft_lm,
        on_token=output.add if beams == 1 else None,
        impl=impl,
    )
    seconds = perf_counter() - start
    if beams > 1:
        for token in result.row(0)[len(ids) :]:
            output.add([token])
    output.close()
    written = result.lengths[0]
    cut = max_new_tokens is None and written == limit < NEW_TOKENS
    end = "; no more positions" if cut else ""
    rate = f"{written / seconds:.1f} tokens/s"
    sys.stderr.write(f"{written} tokens, {rate}, steps: {result.steps}{end}\n")


class _Output:
    """Prints the prompt with the first token, so that nothing is printed before a refusal."""

    def __init__(
        self, prompt: str, tokenizer: Tokenizer, ids: list[int], stop: tuple[int, ...]
    ) -> None:
        self._stream = TextStream(tokenizer, ids, self._write)
        self._unprinted_prompt, self._stop = prompt, stop

    def add(self, tokens: list[int | None]) -> None:
        """Print the token of the only row, unless the row has ended."""
        if tokens[0] is not None and tokens[0] not in self._stop:
            self._stream.add(tokens[0])

    def close(self) -> None:
        """Print what is left, and a line break."""
        self._stream.close()
        self._write("\n")

    def _write(self, text: str) -> None:
        write_stdout(self._unprinted_prompt + text)
        self._unprinted_prompt = ""


def _sampling(
    temperature: float | None, filters: dict[str, Any], seed: int, beams: int
) -> Sampling:
    """Return how tokens are chosen; options that greedy choice does not use are refused."""
    if beams == 1 and temperature != 0.0:
        heat = TEMPERATURE if temperature is None else temperature
        return Sample(temperature=heat, **filters, seed=seed)
    defaults = {"top_k": None, "top_p": 1.0, "min_p": 0.0}
    unused = [f"--{n.replace('_', '-')}" for n in defaults if filters[n] != defaults[n]]
    if temperature:
        unused.append("--temperature")
    if unused:
        greedy = "--temperature 0" if beams == 1 else f"--beams {beams}"
        raise ConfigError(
            f"{' and '.join(unused)} with {greedy}, which does not sample; leave one out."
        )
    return Greedy()


def _prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the tokens of a prompt, behind the token that begins a document."""
    ids = tokenizer.encode(prompt)
    if tokenizer.begin is not None:
        return [tokenizer.begin, *ids]
    if not ids and tokenizer.end is not None:
        return [tokenizer.end]  # a document follows the end of another
    if not ids:
        raise ConfigError("--prompt is empty and no token begins a text here; give some text.")
    return ids
