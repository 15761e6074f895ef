"""Gradients of the running sums, written out: of a stretch's features, values and state before.

Letters as in `running`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from suffice.ops.running import Cut, Read, State, states, unasked


class Slopes(NamedTuple):
    """Gradients.

    Args:
        queries: of the features of the queries [M, rows, F], None if there are none.
        keys: of the features of the keys [M, C, F], None if there are none.
        values: of the values times their factors [M, C, columns].
        state: of the sums before [B, G, F, columns]; None = there are none.
    """

    queries: Tensor | None
    keys: Tensor | None
    values: Tensor | None
    state: Tensor | None


def of_add(part: Read, before: State | None, cut: Cut, to_state: Tensor) -> Slopes:
    """Return the gradients of `running.add`, given that of the state after it."""
    keys, values = torch.zeros_like(part.keys), torch.zeros_like(part.values)
    slopes = Slopes(None, keys, values, None)
    return _through_states(slopes, part, before, cut, [], to_state)


def of_ask(part: Read, state: State, to_sums: Tensor, to_state: Tensor | None) -> Slopes:
    """Return the gradients of `running.ask`, given those of its sums and of later uses."""
    sums = state.sums.flatten(0, 1)
    asked = torch.bmm(part.queries.transpose(1, 2), to_sums).view_as(state.sums)
    queries = torch.bmm(to_sums, sums.transpose(1, 2))
    return Slopes(queries, None, None, asked if to_state is None else asked.add_(to_state))


def of_scan(
    part: Read, before: State | None, cut: Cut, to_sums: Tensor, to_state: Tensor | None
) -> Slopes:
    """Return the gradients of `running.scan`, given those of its sums and of the state after it."""
    pairs = cut.visible(torch.bmm(part.queries, part.keys.transpose(1, 2)), part.factors.pairs)
    values = torch.bmm(pairs.transpose(1, 2), to_sums)
    to_pairs = torch.bmm(to_sums, part.values.transpose(1, 2))
    to_pairs = cut.visible(to_pairs, part.factors.pairs)
    queries = torch.bmm(to_pairs, part.keys)
    keys = torch.bmm(to_pairs.transpose(1, 2), part.queries)
    to_asked = []
    first = unasked(before, cut)
    if first < len(to_sums):
        asking = cut.times(to_sums, part.factors.asked)[first:]
        after = states(part, before, cut, cut.chunks - 1).flatten(0, 2)
        queries[first:].baddbmm_(asking, after.transpose(1, 2))
        to_asked = torch.bmm(part.queries[first:].transpose(1, 2), asking)
        to_asked = to_asked.unflatten(0, (-1, cut.batch, cut.groups)).unbind(0)
    slopes = Slopes(queries, keys, values, None)
    return _through_states(slopes, part, before, cut, to_asked, to_state)


def _through_states(
    slopes: Slopes,
    part: Read,
    before: State | None,
    cut: Cut,
    to_asked: Sequence[Tensor],
    to_state: Tensor | None,
) -> Slopes:
    """Add what the keys and values of each chunk mean for later states, in place.

    Args:
        slopes: what they mean within their chunks.
        part: the stretch.
        before: the state before it.
        cut: its chunks.
        to_asked: gradients of the states that the last chunks ask.
        to_state: gradient of the state after the last chunk; None = there is no use of it.
    """
    added = []  # gradient of each chunk's own sums, the last one first
    kept = part.factors.kept
    for n in reversed(range(cut.chunks)):
        if to_state is not None:
            added.append(to_state)
            if kept is not None:
                to_state = to_state * kept[n, ..., None].to(to_state.dtype)
        place = n - cut.chunks + len(to_asked)
        if place >= 0:
            to_state = to_asked[place] if to_state is None else to_state + to_asked[place]
    if added:
        to_added = torch.stack(added[::-1]).flatten(0, 2)
        some, factor = len(to_added), part.factors.added
        values = cut.times(part.values, factor)[:some]
        slopes.keys[:some].baddbmm_(values, to_added.transpose(1, 2))
        more = torch.bmm(part.keys[:some], to_added)
        slopes.values[:some] += cut.times(more, None if factor is None else factor[: len(added)])
    return slopes._replace(state=None if before is None else to_state)
