"""The recurrence of a layer: gates, a short convolution, and the scan over whole or streamed rows.

Letters: B batch, H heads, G key/value heads, T positions, D and E head widths, M model width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.kernels.recurrent import EPS, Gates, Recurrent
from suffice.mixing import RowLayout
from suffice.ops import recurrence
from suffice.ops.native import recurrence as native
from suffice.ops.native import stock
from suffice.ops.native.library import DECAYS
from suffice.ops.op import is_traced
from suffice.utils.torch_compat import finite, readable

if TYPE_CHECKING:
    from suffice.encoders import Factory
    from suffice.ops.op import Op
    from suffice.utils.protocols import SpecLike


class RecurrentState(NamedTuple):
    """What earlier tokens left: the sums [B, H, D, E], and the last inputs of the convolution."""

    sums: Tensor
    history: Tensor | None  # [B, taps - 1, channels], 0 before the first token

    @property
    def nbytes(self) -> int:
        return self.sums.nbytes + (0 if self.history is None else self.history.nbytes)

    def select(self, rows: Tensor) -> RecurrentState:
        history = None if self.history is None else self.history.index_select(0, rows)
        return RecurrentState(self.sums.index_select(0, rows), history)


class Recurrence(nn.Module):
    """Queries, keys and values [B, heads, T, width] -> outputs [B, H, T, E]."""

    def __init__(self, spec: SpecLike, kernel: Recurrent, factory: Factory) -> None:
        super().__init__()
        self.heads, self.groups, self.scale = spec.num_heads, spec.kv_heads, spec.score_scale
        self.widths = (spec.widths.q, spec.widths.kv, spec.kv_heads * spec.value_width)
        self.channels = sum(self.widths)
        self.corrects, self.taps = kernel.corrects, kernel.convolution
        self.gates = kernel.build_gates(spec, factory)
        self.decays = DECAYS.index(self.gates.kind)
        if kernel.convolution is not None:
            where = {"device": factory.device, "dtype": factory.dtype}
            weight = torch.zeros(kernel.taps(spec), kernel.convolution, **where)
            weight[:, -1] = 1.0  # the token itself
            self.convolution = nn.Parameter(weight)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        x: Tensor,
        rows: RowLayout,
        before: RecurrentState | None,
        *,
        op: Op,
    ) -> tuple[Tensor, RecurrentState]:
        """Return the outputs and the state after them.

        q is [B, H, T, D], k [B, G, T, D], v [B, G, T, E]; the gates read x [B, T, M]. The op of one
        token changes the state `before` in place; the reference sums by step in float64.
        """
        exact = op.name == "reference"
        if op is native.TOKEN and not is_traced():
            return self._token(q, k, v, x, rows, before)
        order = rows.order()
        data, history, spoilt = self._prepare(q, k, v, x, rows, order, before, exact=exact)
        state = self._start(data, before)
        with torch.autocast(q.device.type, enabled=False):
            if op in (native.TOKEN, native.NATIVE_RECURRENCE):
                out, sums = native.scan(data, state)
            elif exact or (before is not None and q.shape[2] == 1):
                out, sums = recurrence.stepwise(data, state)
            else:
                out, sums = recurrence.chunked(data, state)
        if spoilt is not None:
            out = out.masked_fill(spoilt[:, None, :, None], torch.nan)
            if q.shape[2]:
                sums = sums.masked_fill(spoilt[:, -1:, None, None], torch.nan)
        out = rows.scatter(out.transpose(1, 2), order).transpose(1, 2)
        return out.to(q.dtype), RecurrentState(sums, history)

    def _token(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        x: Tensor,
        rows: RowLayout,
        before: RecurrentState | None,
    ) -> tuple[Tensor, RecurrentState]:
        logits, (rates, biases) = self.gates.logits(x), self.gates.constants()
        batch, width, wide = q.shape[0], q.shape[3], v.shape[3]
        if before is None:
            history = (
                None if self.taps is None else q.new_zeros(batch, self.taps - 1, self.channels)
            )
            before = RecurrentState(q.new_zeros(batch, self.heads, width, wide), history)
        after = RecurrentState(*map(_changeable, before))
        out = q.new_empty(batch, self.heads, 1, wide)
        sizes = self.heads, self.groups, width, wide, self.taps or 0, self.decays, self.corrects
        weight = None if self.taps is None else self.convolution
        inputs = (q, k, v, logits.decay, logits.beta, weight, rates, biases)
        valid = None if rows.valid is None else rows.valid.contiguous()
        places = *map(_readable, inputs), valid, after.history, after.sums, out
        native.token(native.token_structure(*sizes, self.scale, EPS), batch, *places)
        return out, after

    def weights(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, rows: RowLayout) -> Tensor:
        """Return what outputs take of values, after the convolution: float64 [B, H, T, T]."""
        order = rows.order()
        parts = (y.double() for y in (q, k, v))
        data, *_ = self._prepare(*parts, x, rows, order, None, exact=True, identity=True)
        found, _ = recurrence.stepwise(data, self._start(data, None))
        found = rows.scatter(found.transpose(1, 2), order)  # B T H S
        return rows.scatter(found.transpose(1, 3), order).permute(0, 2, 3, 1)

    def sequence(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, rows: RowLayout
    ) -> recurrence.Sequence:
        """Return the numbers that are summed, after gates and convolution, in float64."""
        return self._prepare(q, k, v, x, rows, rows.order(), None, exact=True)[0]

    def _start(self, data: recurrence.Sequence, before: RecurrentState | None) -> Tensor:
        if before is not None:
            return before.sums.to(data.q.dtype)
        return data.q.new_zeros(*data.q.shape[:2], data.q.shape[3], data.v.shape[3])

    def _prepare(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        x: Tensor,
        rows: RowLayout,
        order: Tensor | None,
        before: RecurrentState | None,
        *,
        exact: bool,
        identity: bool = False,
    ) -> tuple[recurrence.Sequence, Tensor | None, Tensor | None]:
        """Return what is summed, real tokens first, the new history of the convolution, and bool
        [B, T], True from a token of a document on that is not finite: 0 takes its place. None: all
        are finite.
        """
        dtype = torch.float64 if exact else torch.promote_types(q.dtype, torch.float32)
        joined = torch.cat([y.transpose(1, 2).flatten(2) for y in (q, k, v)], dim=-1).to(dtype)
        joined = rows.gather(joined, order)
        gates = Gates(*(None if g is None else rows.gather(g, order) for g in self.gates(x)))
        real = None
        if rows.valid is not None:  # first in each row now
            places = torch.arange(x.shape[1], device=x.device)
            real = places < rows.valid.sum(dim=1, keepdim=True)
        documents = None if rows.documents is None else rows.gather(rows.documents, order)
        spoilt = None
        if not (readable(joined) and finite(joined)):
            bad = ~joined.isfinite().all(dim=-1)
            joined = joined.masked_fill(bad[..., None], 0.0)
            gates = Gates(
                *(None if g is None else g.masked_fill(bad[..., None, None], 0.0) for g in gates)
            )
            spoilt = _from_first(bad, documents)
        history = None
        if self.taps is not None:
            joined, history = self._convolve(joined, real, documents, before)
        q, k, v = joined.split(self.widths, dim=-1)
        q = q.unflatten(-1, (self.heads, -1))
        k, v = (y.unflatten(-1, (self.groups, -1)) for y in (k, v))
        if self.corrects:
            q, k = map(_unit, (q, k))
        if real is not None:
            k = k.masked_fill(~real[..., None, None], 0.0)
        if identity:
            v = torch.eye(v.shape[1], dtype=dtype, device=v.device)[:, None].expand(
                len(v), -1, -1, -1
            )
        repeats = self.heads // self.groups
        k = k.repeat_interleave(repeats, dim=2)
        v = v.repeat_interleave(1 if identity else repeats, dim=2)
        v = v.expand(-1, -1, self.heads, -1)
        if gates.step is not None:
            v = v * gates.step.to(dtype)
            if not (readable(v) and finite(v)):  # finite numbers whose product is not
                bad = ~v.isfinite().flatten(2).all(dim=-1)
                v = v.masked_fill(bad[..., None, None], 0.0)
                later = _from_first(bad, documents)
                spoilt = later if spoilt is None else spoilt | later
        q, k, v, decay, beta = (
            None if y is None else y.to(dtype).transpose(1, 2)
            for y in (self.scale * q, k, v, gates.log_decay, gates.beta)
        )
        data = recurrence.Sequence(q, k, v, decay, beta, documents)
        return data, history, spoilt

    def _convolve(
        self,
        joined: Tensor,
        real: Tensor | None,
        documents: Tensor | None,
        before: RecurrentState | None,
    ) -> tuple[Tensor, Tensor]:
        past, length = self.taps - 1, joined.shape[1]
        if before is None:
            whole = F.pad(joined, (0, 0, past, 0))
        else:
            whole = torch.cat([before.history.to(joined.dtype), joined], dim=1)
        weight = self.convolution.to(joined.dtype)
        native_taps = stock.suits_weights(weight) and self.taps <= stock.MAX_TAPS
        if length and native_taps and stock.suits(joined):
            inputs = joined if before is None else whole
            out = stock.convolve(inputs, weight, None, documents, 1)[:, -length:]
        else:
            out = F.silu(_sums(whole, weight, documents))
        if real is None:
            return out, whole[:, length:]
        first = real.sum(dim=1)[:, None] + torch.arange(past, device=joined.device)
        return out, whole.gather(1, first[..., None].expand(-1, -1, whole.shape[2]))


def _sums(whole: Tensor, weight: Tensor, documents: Tensor | None) -> Tensor:
    """Return the causal sums [B, T, C] of inputs [B, taps - 1 + T, C] inside each document."""
    past = weight.shape[1] - 1
    length = whole.shape[1] - past
    total = whole[:, past:] * weight[:, past]
    for back in range(1, past + 1):
        earlier = whole[:, past - back : past - back + length]
        if documents is not None:
            same = F.pad(documents[:, back:] == documents[:, :-back], (min(back, length), 0))
            earlier = earlier * same[:, :length, None]
        total = total + earlier * weight[:, past - back]
    return total


def _unit(x: Tensor) -> Tensor:
    if stock.suits(x):
        width = x.shape[-1]
        root = x.new_full((width,), width**-0.5)
        return stock.norm(x, root, eps=EPS / width)
    return x * (x.square().sum(-1, keepdim=True) + EPS).rsqrt()


def _readable(x: Tensor | None) -> Tensor | None:
    return x if x is None or _is_plain(x) else x.float().contiguous()


def _changeable(x: Tensor | None) -> Tensor | None:
    """Return a part of a state that no gradient needs, as it is or copied."""
    if x is None or (_is_plain(x) and not x.requires_grad):
        return x
    return x.detach().to(torch.float32, memory_format=torch.contiguous_format, copy=True)


def _is_plain(x: Tensor) -> bool:
    return x.dtype is torch.float32 and x.is_contiguous()


def _from_first(marked: Tensor, documents: Tensor | None) -> Tensor:
    """Return bool [B, T], True from the first marked token of each document on."""
    if documents is None:
        return marked.long().cumsum(dim=1) > 0
    at = torch.arange(marked.shape[1], device=marked.device)
    latest = torch.where(marked, at, -1).cummax(dim=1).values
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))
    return latest >= torch.where(begins, at, 0).cummax(dim=1).values
