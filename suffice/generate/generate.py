"""`generate`: prompts in, prompts and new tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.generate import beams as beam_search
from suffice.generate import one_by_one, speculative
from suffice.generate.choice import Choice
from suffice.generate.generated import Generated
from suffice.generate.kinds import check_kinds, is_whole
from suffice.generate.limits import check_room
from suffice.generate.prompts import Prompts, prompts_of
from suffice.generate.read import piece_of
from suffice.generate.rows import OnToken, Rows
from suffice.generate.sampling import Greedy, Sampling
from suffice.generate.stepping import check_impl, stepping
from suffice.generate.writer import Writer
from suffice.memory import Dynamic, Memory
from suffice.models.state import ModelState

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
                one_by_one.write(lm, prompts, state, rows, choice, piece)
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
