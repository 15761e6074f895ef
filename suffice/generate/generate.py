"""`generate`: continues prompts by sampling, greedy decoding, beam search or speculation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

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
from suffice.generate.sampling import Greedy, Sampler, Sampling
from suffice.memory import Dynamic, Memory
from suffice.models.state import ModelState
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
    """Raise if a text has more tokens than the model or the memory can hold.

    The batch of prompts has `prompt` columns, padding included; the longest prompt has `longest`.
    """
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
