"""`generate` and `slide`: continue prompts by sampling, greedily, by beam search or speculation.

A `Stopwatch` measures the rates of prefill and decoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.generate import speculative
from suffice.generate.decoding import (
    CausalModel,
    OnToken,
    Output,
    batch_prompts,
    beam_search,
    choose_backend,
    decode,
    prefill_chunk,
)
from suffice.generate.sampling import Greedy, Sample, Sampler, Sampling
from suffice.memory import Dynamic, Memory
from suffice.models.state import ModelState
from suffice.text.tokenizer import Tokenizer, prompt_ids
from suffice.utils.records import is_whole

GREEDY, EVERYTHING = Greedy(), Dynamic()


@dataclass(frozen=True, kw_only=True, eq=False)
class Generated:
    """Prompts and their continuations."""

    tokens: Tensor  # int64 [B, T + N]: padding, prompt, new tokens, padding
    prompts: tuple[int, ...]  # tokens of each prompt
    lengths: tuple[int, ...]  # new tokens of each row, the stop id included
    # [B], sum of the log-probabilities of the new tokens over lengths^length_penalty, of a beam
    # search; else None
    scores: Tensor | None = None
    # state of the model after all but the last tokens, if keep_state; else None
    state: ModelState | None = None
    # backend that decoded single tokens: "native (avx512)", or "torch" and why
    steps: str = "torch"

    @property
    def new(self) -> Tensor:
        """The new tokens [B, N], shorter rows padded on the right."""
        return self.tokens[:, max(self.prompts) :]

    def row(self, row: int) -> list[int]:
        """Return prompt and new tokens of a row, without padding."""
        end = max(self.prompts)
        return self.tokens[row, end - self.prompts[row] : end + self.lengths[row]].tolist()


def generate(
    lm: CausalModel,
    tokens: Tensor | Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    beams: int = 1,
    length_penalty: float = 1.0,
    stop: Sequence[int] = (),
    pad: int = 0,
    memory: Memory = EVERYTHING,
    valid: Tensor | None = None,
    chunk: int | None = None,
    draft: CausalModel | None = None,
    drafts: int = 4,
    on_token: OnToken | None = None,
    keep_state: bool = False,
    impl: str = "auto",
) -> Generated:
    """Return prompts continued by a model, with dropout off.

    Each row gives what it gives alone, within rounding. It ends at its first new stop id, and
    padding follows; stop ids inside a prompt have no effect.

    Args:
        lm: the model.
        tokens: int [B, T], or the ids of each row, of any lengths.
        max_new_tokens: maximum of new tokens in each row, >= 0.
        sampling: rule that chooses a token.
        beams: beam width of a search for the most probable continuation, see `beam_search`; 1
            disables it.
        length_penalty: power of the length that divides a beam's score.
        stop: ids that end a row.
        pad: id at padding.
        memory: the KV cache of each layer; layers of features keep their sums instead.
        valid: bool [B, T] for a tensor, True = a real token; padding may stand anywhere.
        chunk: prompt tokens read at once; None: all, or a few windows' worth with a rolling
            memory.
        draft: a smaller model of the same vocabulary for speculative decoding; it changes neither
            the distribution of samples nor a greedy text. Rows are written one after another.
        drafts: tokens it proposes at once.
        on_token: function called with the token of each row as it is written, None for rows that
            ended; with a draft, row after row. Not with beams, whose tokens are known at the end.
        keep_state: whether the result holds the state of the model.
        impl: backend that decodes single tokens: "native", this library's kernels for CPUs;
            "torch"; or "auto", native where possible. The result says which.

    Raises:
        ConfigError: for numbers outside their range, arguments that do not go together, or more
            tokens than the model or its memory can hold; before anything is read.
        ShapeError: if a shape does not fit.
        MaskError: if valid is not boolean.

    Example:
        >>> from suffice import preset
        >>> from suffice.models import LMConfig
        >>> sizes = dict(vocabulary_size=9, length=16, d_model=8, depth=1, mlp_width=8)
        >>> lm = LMConfig(**sizes).build(preset("efficient", 8, 2, causal=True))
        >>> generate(lm, [[3], [1, 2]], max_new_tokens=4).tokens.shape
        torch.Size([2, 6])
    """
    vocabulary = _check_model(lm, sampling, memory)
    _check_count("max_new_tokens", max_new_tokens, least=0)
    _check_count("beams", beams)
    _check_count("chunk", 1 if chunk is None else chunk)
    _check_count("drafts", 1 if draft is None else drafts)
    _check_ids(vocabulary, stop, pad)
    _check_beams(beams, sampling, length_penalty, draft, on_token, keep_state)
    prompts = batch_prompts(tokens, valid, vocabulary_size=vocabulary, pad=pad, device=lm.device)
    sizes = {"prompt": prompts.tokens.shape[1], "longest": max(prompts.lengths)}
    check_fits(lm, memory, new=max_new_tokens, **sizes)
    if draft is not None:
        memory = speculative.check(lm, draft, drafts, memory, keep_state)
        check_fits(draft, memory, new=max_new_tokens, **sizes)
        draft, _ = choose_backend(draft, memory, impl)
    lm, backend = choose_backend(lm, memory, impl)
    state = lm.state(memory)
    output = Output(
        len(prompts.lengths),
        max_new_tokens,
        stop=tuple(stop),
        pad=pad,
        device=lm.device,
        on_token=on_token,
    )
    scores, chunk = None, prefill_chunk(memory, chunk)
    # the state of a result must also serve outside of inference mode
    no_gradients = torch.no_grad() if keep_state else torch.inference_mode()
    if max_new_tokens:
        with no_gradients, eval_mode(lm, draft):
            if beams > 1:
                scores = beam_search(lm, prompts, state, output, beams, length_penalty, chunk)
            elif draft is not None:
                speculative.decode(lm, draft, prompts, output, sampling, memory, chunk, drafts)
            else:
                sampler = Sampler(sampling, prompts.tokens, prompts.valid, vocabulary)
                decode(lm, prompts, state, output, sampler, chunk)
    return Generated(
        tokens=torch.cat([prompts.tokens, output.tokens[:, : output.count]], dim=1),
        prompts=prompts.lengths,
        lengths=tuple(output.lengths.tolist()),
        scores=None if scores is None else scores.clone(),
        state=state if keep_state else None,
        steps=backend,
    )


def slide(
    lm: CausalModel,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    stop: Sequence[int] = (),
    **options: Any,
) -> list[int]:
    """Return the tokens that follow a prompt, however long the text becomes.

    A model with learned positions, or with an alignment over positions, has a maximum length.
    Beyond it, the latest half is reread from position 0 and the text goes on from there: about two
    tokens are computed for each one written. nanoGPT rereads the whole window for each token. A
    text that fits is what `generate` gives.

    Args:
        lm: the model.
        prompt: ids; only the latest that the model can read enter.
        max_new_tokens: maximum of new tokens, >= 0.
        sampling: rule that chooses a token; each piece of a sampled text gets another seed.
        stop: ids that end the text.
        **options: options of `generate`, for each piece.

    Example:
        >>> from suffice import preset
        >>> from suffice.models import LMConfig
        >>> sizes = dict(vocabulary_size=9, length=8, d_model=8, depth=1, mlp_width=8)
        >>> lm = LMConfig(**sizes).build(preset("efficient", 8, 2, causal=True))
        >>> len(slide(lm, [3, 1], max_new_tokens=20))
        20
    """
    text, room = list(prompt), max_length(lm)
    if not text:
        raise ConfigError("the prompt has no token; give at least one to continue.")
    written: list[int] = []
    context = text if room is None else text[-room:]
    while len(written) < max_new_tokens:
        new = max_new_tokens - len(written)
        if room is not None:
            new = min(new, room + 1 - len(context))  # the last token is not read again
        choose = sampling
        if isinstance(sampling, Sample):
            choose = replace(sampling, seed=sampling.seed + len(written))
        result = generate(lm, [context], max_new_tokens=new, sampling=choose, stop=stop, **options)
        piece = result.row(0)[len(context) :]
        written += piece
        text += piece
        if piece[-1] in stop:
            break
        if room is not None:
            context = text[-max(room // 2, 1) :]
    return written


def sample_text(lm: CausalModel, tokenizer: Tokenizer, *, tokens: int, seed: int = 0) -> str:
    """Return text that a model writes at the beginning of a document."""
    sampling = Sample(temperature=0.8, seed=seed)
    ids = slide(lm, prompt_ids(tokenizer, ""), max_new_tokens=tokens, sampling=sampling)
    hidden, size = {tokenizer.begin, tokenizer.end}, tokenizer.vocabulary_size
    # a model may have more rows than its tokenizer has tokens, for speed
    return tokenizer.decode([id_ for id_ in ids if id_ not in hidden and id_ < size])


@contextmanager
def eval_mode(*models: CausalModel | None) -> Iterator[None]:
    """Turn dropout off in models, and on again in those that were training."""
    training = [model for model in models if model is not None and model.training]
    for model in training:
        model.train(False)
    try:
        yield
    finally:
        for model in training:
            model.train()


def max_length(lm: CausalModel) -> int | None:
    """Return the maximum length of a text of a model, in tokens; None: unlimited."""
    return min((limit for limit, _ in _limits(lm)), default=None)


def _limits(lm: CausalModel) -> Iterator[tuple[int, str]]:
    if lm.config.positions == "learned":
        yield lm.config.length, f"of a model that learned {lm.config.length}"
    for number, spec in enumerate(lm.specs):
        if (limit := spec.max_length) is not None:
            axes = (spec.mixing, spec.position, spec.pattern)
            name = next(type(axis).__name__ for axis in axes if axis.max_length == limit)
            yield limit, f"where {name} in block {number} reaches {limit}"


def check_fits(lm: CausalModel, memory: Memory, *, prompt: int, longest: int, new: int) -> None:
    """Raise if padded prompts and `new` tokens do not fit into the model or the memory."""
    limits = [(longest, limit, part) for limit, part in _limits(lm)]
    if memory.capacity is not None:
        part = f"of {memory!r}, which has {memory.capacity}"
        limits.insert(0, (prompt, memory.capacity, part))
    for length, limit, part in limits:
        if new and length + new - 1 > limit:
            raise ConfigError(
                f"a prompt of {length} and {new} new tokens need {length + new - 1} positions "
                f"{part}; generate fewer tokens, shorten the prompt, or call "
                "suffice.generate.slide, which goes on behind the latest half of the text."
            )


def _check_model(lm: CausalModel, sampling: Sampling, memory: Memory) -> int:
    if not hasattr(lm, "config") or not hasattr(lm, "state"):
        raise ConfigError(
            f"lm={lm!r:.80} is a {type(lm).__name__}, no language model; give what "
            "LMConfig(...).build(...) or suffice.models.folder.load returns."
        )
    if not isinstance(sampling, Sampling):
        raise ConfigError(f"sampling={sampling!r:.80}: give Greedy() or Sample(...).")
    if not isinstance(memory, Memory):
        raise ConfigError(f"memory={memory!r} is not a KV cache; give, for example, Dynamic().")
    return lm.config.vocabulary_size


def _check_count(name: str, value: int, least: int = 1) -> None:
    if not is_whole(value):
        raise ConfigError(f"{name}={value!r} is not a whole number.")
    if value < least:
        raise ConfigError(f"{name}={value}: give at least {least}.")


def _check_ids(vocabulary: int, stop: Sequence[int], pad: int) -> None:
    if not isinstance(stop, Sequence) or isinstance(stop, str):
        raise ConfigError(
            f"stop={stop!r}: give the ids that end a row as a sequence, such as (2,)."
        )
    for value in (*stop, pad):
        if not is_whole(value) or not 0 <= value < vocabulary:
            raise ConfigError(
                f"stop={tuple(stop)}, pad={pad}: {value!r} is not an id; "
                f"give 0 to {vocabulary - 1}."
            )


def _check_beams(
    beams: int,
    sampling: Sampling,
    length_penalty: float,
    draft: CausalModel | None,
    on_token: OnToken | None,
    keep_state: bool,
) -> None:
    if not 0.0 <= length_penalty < math.inf:
        raise ConfigError(f"length_penalty={length_penalty}: give a number of at least 0.")
    if beams == 1:
        if length_penalty != 1.0:
            raise ConfigError(f"length_penalty={length_penalty} without beams; give beams=2 or so.")
        return
    excluded = {
        f"sampling={sampling!r}": sampling != Greedy(),
        "draft": draft is not None,
        "on_token": on_token is not None,
        "keep_state": keep_state,
    }
    if names := [name for name, present in excluded.items() if present]:
        raise ConfigError(
            f"beams={beams} with {' and '.join(names)}: beam search keeps the most probable texts "
            "and has tokens only at its end; leave one out."
        )


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The times of one text."""

    prompt: int  # tokens that were read first
    prompt_seconds: float  # seconds from the start to the first new token
    token_seconds: tuple[float, ...]  # seconds of each new token after the first

    @property
    def prefill(self) -> float:
        """Tokens of the prompt per second, the first new token included in the time."""
        return self.prompt / self.prompt_seconds

    @property
    def decode(self) -> float:
        """New tokens per second after the first, or raise ConfigError if there are none."""
        if not self.token_seconds:
            raise ConfigError("one new token has no rate; write at least 2.")
        return len(self.token_seconds) / sum(self.token_seconds)

    def __str__(self) -> str:
        decode = f"{self.decode:,.1f} tokens/s" if self.token_seconds else "one token, no rate"
        return f"prompt {self.prefill:,.1f} tokens/s, decode {decode}"


def rates_of(prompt: int, ticks: Sequence[float]) -> Rates:
    """Return the rates of a start time and the time at which each new token was there."""
    return Rates(
        prompt=prompt,
        prompt_seconds=ticks[1] - ticks[0],
        token_seconds=tuple(later - earlier for earlier, later in pairwise(ticks[1:])),
    )


class Stopwatch:
    """An `on_token` of `generate` that measures its rates; what it calls itself does not count.

    Example:
        >>> ticks = iter([0.0, 2.0, 2.0, 2.5, 9.5, 10.0, 10.0])
        >>> watch = Stopwatch(print, clock=lambda: next(ticks))
        >>> for token in (7, 8, 9):
        ...     watch([token])
        [7]
        [8]
        [9]
        >>> watch.rates(prompt=4).token_seconds
        (0.5, 0.5)
    """

    def __init__(
        self, on_token: OnToken | None = None, *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._on_token, self._clock = on_token, clock
        self._outside = 0.0
        self._ticks = [clock()]

    def __call__(self, tokens: list[int | None]) -> None:
        """Take note of the time, then pass the tokens on."""
        now = self._clock()
        self._ticks.append(now - self._outside)
        if self._on_token is not None:
            self._on_token(tokens)
        self._outside += self._clock() - now

    def rates(self, prompt: int) -> Rates:
        """Return the rates after a prompt of `prompt` tokens."""
        return rates_of(prompt, self._ticks)
