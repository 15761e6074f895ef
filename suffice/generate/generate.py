"""`generate`: prompts in, prompts and new tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.generate import beams as beam_search
from suffice.generate import decoding, speculative
from suffice.generate.decoding import OnToken, Rows, Writer, check_impl, piece_of, stepping
from suffice.generate.prompts import Prompts, prompts_of
from suffice.generate.sampling import Choice, Greedy, Sampling
from suffice.memory import Dynamic, Memory
from suffice.models.state import ModelState


def is_whole(value: object) -> bool:
    """Return whether this is a whole number, also NumPy's; True and False are none.

    Example:
        >>> is_whole(3), is_whole(3.0), is_whole(True)
        (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_kinds(lm: Writer, sampling: Sampling, memory: Memory, whole: dict[str, object]) -> None:
    """Refuse a model, a sampling, a memory or counts that are none.

    Args:
        lm: the model.
        sampling: how a token is chosen.
        memory: what each layer keeps.
        whole: numbers by name.

    Raises:
        ConfigError: naming what was given.
    """
    if not hasattr(lm, "config") or not hasattr(lm, "state"):
        raise ConfigError(
            f"lm={lm!r:.80} is a {type(lm).__name__}, no language model; give what "
            "LMConfig(...).build(...) or suffice.models.folder.load returns."
        )
    if not isinstance(sampling, Sampling):
        raise ConfigError(f"sampling={sampling!r:.80}: give Greedy() or Sample(...).")
    if not isinstance(memory, Memory):
        raise ConfigError(
            f"memory={memory!r} is no memory; give an instance such as Dynamic() or Rolling(256)."
        )
    for name, value in whole.items():
        if not is_whole(value):
            raise ConfigError(f"{name}={value!r} is not a whole number.")


def most_tokens(lm: Writer) -> int | None:
    """Return how many tokens a text of a model may have; None = any number."""
    limits = [spec.max_length for spec in lm.specs]
    limits.append(lm.config.length if lm.config.positions == "learned" else None)
    return min((one for one in limits if one is not None), default=None)


def room(lm: Writer, memory: Memory, prompt: int) -> int | None:
    """Return how many tokens can be written behind a prompt; None = any number.

    Args:
        lm: the model.
        memory: what it keeps.
        prompt: tokens of the prompt.
    """
    ends = [end for end in (memory.capacity, most_tokens(lm)) if end is not None]
    return max(0, min(ends) - prompt + 1) if ends else None


def check_room(lm: Writer, memory: Memory, *, prompt: int, longest: int, new: int) -> None:
    """Refuse more tokens than the model or the memory can hold.

    The last new token is not read again, so prompt + new - 1 tokens are.

    Args:
        lm: the model.
        memory: what it keeps.
        prompt: columns of the batch of prompts, padding included.
        longest: tokens of the longest prompt.
        new: tokens to write.

    Raises:
        ConfigError: with what is needed and what there is.
    """
    if not new:
        return
    if memory.capacity is not None and prompt + new - 1 > memory.capacity:
        raise ConfigError(
            f"a prompt of {prompt} and {new} new tokens need {prompt + new - 1} positions of "
            f"{memory!r}, which has {memory.capacity}; give a longer one, or ask for fewer tokens."
        )
    if lm.config.positions == "learned" and longest + new - 1 > lm.config.length:
        raise ConfigError(
            f"a prompt of {longest} and {new} new tokens need {longest + new - 1} positions of a "
            f"model that learned {lm.config.length}; ask for fewer tokens, or cut the prompt."
        )
    for number, spec in enumerate(lm.specs):
        if spec.max_length is not None and longest + new - 1 > spec.max_length:
            raise ConfigError(
                f"a prompt of {longest} and {new} new tokens need {longest + new - 1} positions; "
                f"{type(spec.mixing).__name__} in block {number} reaches {spec.max_length}; ask "
                "for fewer tokens, or cut the prompt."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Generated:
    """Prompts and what was written behind them.

    Args:
        tokens: int64 [B, T + N]: padding, prompt, new tokens, padding.
        prompts: tokens of each prompt.
        lengths: new tokens of each row, the stop id included.
        scores: [B], sum of the log-probabilities of the new tokens over lengths^length_penalty,
            where beams were searched; else None.
        state: of the model behind all but the last tokens, where it was asked for; else None.
        steps: how single tokens went through the model: "native (avx512)", or "torch" and why.
    """

    tokens: Tensor
    prompts: tuple[int, ...]
    lengths: tuple[int, ...]
    scores: Tensor | None = None
    state: ModelState | None = None
    steps: str = "torch"

    @property
    def new(self) -> Tensor:
        """The new tokens [B, N], padding behind those of shorter rows."""
        return self.tokens[:, max(self.prompts) :]

    def row(self, row: int) -> list[int]:
        """Return prompt and new tokens of a row, without any padding."""
        end = max(self.prompts)
        return self.tokens[row, end - self.prompts[row] : end + self.lengths[row]].tolist()


GREEDY, EVERYTHING = Greedy(), Dynamic()


def generate(
    lm: Writer,
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
    draft: Writer | None = None,
    drafts: int = 4,
    on_token: OnToken | None = None,
    keep_state: bool = False,
    impl: str = "auto",
) -> Generated:
    """Return prompts and what a model writes behind them; dropout is off meanwhile.

    Each row gives what it gives alone, within rounding. It ends with its first new stop id, and
    padding follows; stop ids inside a prompt end nothing.

    Args:
        lm: the model.
        tokens: int [B, T], or the ids of each row, of any lengths.
        max_new_tokens: of each row, >= 0.
        sampling: how a token is chosen.
        beams: rows searched for the most probable continuation, see `beams.search`; 1 = no search.
        length_penalty: power of the length that divides a beam's score.
        stop: ids that end a row.
        pad: id that stands at padding.
        memory: what each layer keeps; layers of features keep their sums.
        valid: bool [B, T] beside a tensor, True = a real token; padding may stand anywhere.
        chunk: prompt tokens read at once; None = all, or a few windows' worth with a rolling
            memory.
        draft: a smaller model of the same vocabulary that proposes tokens; what is written stays
            distributed as without it, and greedily the same. Rows are written one after another.
        drafts: tokens it proposes at once.
        on_token: called with the token of each row as it is written, None for rows that ended;
            with a draft, row after row. A search knows its tokens at its end and takes none.
        keep_state: whether the result holds the state of the model.
        impl: how one token goes through the model: "native", by the kernels of this library for
            CPUs; "torch"; or "auto", natively where that is possible. The result says which.

    Raises:
        ConfigError: for numbers outside their range, arguments that do not go together, or more
            tokens than the model or its memory can hold; nothing was read then.
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
    check_kinds(lm, sampling, memory, whole={"max_new_tokens": max_new_tokens, "beams": beams})
    vocabulary = lm.config.vocabulary_size
    _check_numbers(vocabulary, max_new_tokens, stop, pad, chunk)
    check_impl(impl)
    prompts = prompts_of(tokens, valid, vocabulary_size=vocabulary, pad=pad, device=lm.device)
    sizes = {"prompt": prompts.tokens.shape[1], "longest": max(prompts.lengths)}
    check_room(lm, memory, new=max_new_tokens, **sizes)
    beam_search.check(beams, sampling, length_penalty, draft, on_token, keep_state)
    if draft is not None:
        memory = speculative.check(lm, draft, drafts, memory, keep_state)
        check_room(draft, memory, new=max_new_tokens, **sizes)
    lm, how = stepping(lm, memory, impl)
    draft = None if draft is None else stepping(draft, memory, impl)[0]
    state = lm.state(memory)
    rows = Rows(
        len(prompts.lengths),
        max_new_tokens,
        stop=tuple(stop),
        pad=pad,
        device=lm.device,
        on_token=on_token,
    )
    scores, piece = None, piece_of(memory, chunk)
    if max_new_tokens:
        with _quiet(keep_state), Still(lm, draft):
            if beams > 1:
                scores = beam_search.search(lm, prompts, state, rows, beams, length_penalty, piece)
            elif draft is not None:
                speculative.write(lm, draft, prompts, rows, sampling, memory, piece, drafts)
            else:
                choice = Choice(sampling, prompts, vocabulary)
                decoding.write(lm, prompts, state, rows, choice, piece)
    return _result(prompts, rows, scores, state if keep_state else None, how)


def _result(
    prompts: Prompts, rows: Rows, scores: Tensor | None, state: ModelState | None, how: str
) -> Generated:
    new = rows.tokens[:, : rows.count]
    return Generated(
        tokens=torch.cat([prompts.tokens, new], dim=1),
        prompts=prompts.lengths,
        lengths=tuple(rows.lengths.tolist()),
        scores=None if scores is None else scores.clone(),
        state=state,
        steps=how,
    )


def _check_numbers(
    vocabulary: int, new: int, stop: Sequence[int], pad: int, chunk: int | None
) -> None:
    if new < 0:
        raise ConfigError(f"max_new_tokens={new}: give at least 0.")
    if not isinstance(stop, Sequence) or isinstance(stop, str):
        raise ConfigError(
            f"stop={stop!r}: give the ids that end a row as a sequence, such as (2,)."
        )
    wrong = [id_ for id_ in (*stop, pad) if not is_whole(id_) or not 0 <= id_ < vocabulary]
    if wrong:
        raise ConfigError(
            f"stop={tuple(stop)}, pad={pad}: {wrong[0]!r} is no id; give 0 to {vocabulary - 1}."
        )
    if chunk is not None and chunk < 1:
        raise ConfigError(f"chunk={chunk}: give at least 1, or None.")


def _quiet(keep_state: bool) -> AbstractContextManager[object]:
    """Leave gradients out; a state that is kept must serve outside of inference mode, too."""
    return torch.no_grad() if keep_state else torch.inference_mode()


class Still:
    """Models whose dropout is off for a while."""

    def __init__(self, *models: Writer | None) -> None:
        self.models = [model for model in models if model is not None and model.training]

    def __enter__(self) -> None:
        for model in self.models:
            model.train(False)

    def __exit__(self, *_: object) -> None:
        for model in self.models:
            model.train()
