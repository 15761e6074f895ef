"""What new positions of a streamed call read of a state, which keeps them.

Letters: B batch, H query heads, G key/value heads, T new positions, D and E head widths.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from suffice.layers.given import PLAIN
from suffice.layers.next import Next
from suffice.layers.seen import Seen, where_of
from suffice.layers.state import LayerState
from suffice.ops.call import AttentionCall
from suffice.ops.dispatch import plan
from suffice.ops.native import decode
from suffice.ops.native.decode import DECODE
from suffice.ops.op import Op, is_transformed

if TYPE_CHECKING:
    from suffice.layers.attention import Attention


def read(layer: Attention, q: Tensor, k: Tensor, v: Tensor, state: LayerState, new: Next) -> Tensor:
    """Return the outputs [B, H, T, E].

    Args:
        layer: whose they are.
        q: [B, H, T, D], turned, as the keys.
        k: [B, G, T, D].
        v: [B, G, T, E], before any mixing.
        state: of the layer.
        new: where they stand, what `begin` gave.
    """
    if state.memory.lossy:
        problem = _of_codes(layer, q, state, new)
        if problem is not None:
            return _coded(layer, q, k, v, state, new, problem)
    return _plainly(layer, q, state.add(layer.mixing, k, v, new), state, new)


def _plainly(layer: Attention, q: Tensor, seen: Seen, state: LayerState, new: Next) -> Tensor:
    problem, op = _plan(layer, q.shape[2], seen, state, new)
    k, v, where, _ = seen
    return op(q, k, v, where, problem, layer.parts())


def _plan(
    layer: Attention, queries: int, seen: Seen, state: LayerState, new: Next
) -> tuple[AttentionCall, Op]:
    """Return the problem of a streamed call and its op, decided once for equal layers."""
    keys, where = seen.k.shape[2], seen.where
    alike = layer.impl, where is PLAIN, seen.pairwise, seen.k.dtype, new.device.type, queries
    before = _before(state, alike)
    if before is not None:
        return before.grown(keys), DECODE

    def planned() -> tuple[AttentionCall, Op]:
        given = (seen.pairwise, new.device.type, False, seen.k.dtype)
        problem = replace(layer.problem(queries, keys, where, given), pattern=state.pattern)
        return problem, plan(problem, layer.impl)

    problem, op = new.once((state.kind, *alike), planned, keys)
    if op is DECODE:
        _remember(state, alike, problem)
    return problem, op


def _of_codes(layer: Attention, q: Tensor, state: LayerState, new: Next) -> AttentionCall | None:
    """Return the problem if the kernels are to read codes; None = they are decoded first."""
    keys = state.length + new.length
    alike = layer.impl, new.places is None, q.dtype, new.device.type, new.length
    before = _before(state, alike)
    if before is not None:
        return before.grown(keys)
    given = (False, new.device.type, False, q.dtype)
    problem = layer.problem(new.length, keys, PLAIN, given)
    problem = replace(problem, plain=new.places is None)
    takes = layer.impl in ("auto", DECODE.name)
    if not takes or not decode.reads_codes(state.memory, problem):
        return None
    _remember(state, alike, problem)
    return problem


def _before(state: LayerState, alike: tuple) -> AttentionCall | None:
    """Return a problem of an earlier token that the kernels took: with more keys they do, too."""
    if is_transformed() or torch.is_grad_enabled():
        return None
    return state.asked.get(alike)


def _remember(state: LayerState, alike: tuple, problem: AttentionCall) -> None:
    if not torch.compiler.is_compiling():
        state.asked[alike] = problem


def _coded(
    layer: Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LayerState,
    new: Next,
    problem: AttentionCall,
) -> Tensor:
    slot = state.append_encoded(layer.mixing, k, v, new)
    if state.memory.window is None:
        where = where_of(new, problem.pattern, state.places, 0, 0, state.length)[0]
    else:
        where = PLAIN if new.places is None else replace(PLAIN, q_positions=new.rows.positions)
    out, whole = decode.attend_coded(q, state.store, slot, state.memory, where, problem)
    if whole or problem.unrestricted:
        return out
    return _plainly(layer, q, state.seen(state.store.cached(), new), state, new)
