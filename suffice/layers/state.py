"""The state of a layer that reads a sequence in chunks: its KV cache, or sums of features.

Any chunks give what one call gives: the state knows where the next token stands. Rows of a batch
may be padded; then each row counts its own real tokens.

Letters: B batch, G key/value heads, T new tokens, S cached tokens, D key width, E value width.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, ShapeError
from suffice.layers.inputs import (
    Inputs,
    KVView,
    SharedKV,
    check_memory,
)
from suffice.layers.positions import UNMASKED, UNPADDED, StepPositions, real_tokens
from suffice.layers.recurrence import RecurrentState
from suffice.memory import CachedTensors, Memory, Slot, Store
from suffice.memory.dynamic import GrowingStore
from suffice.memory.past import InfiniState
from suffice.memory.quantised import QuantisedStore
from suffice.mixing import RowLayout
from suffice.ops import running_sums, scan
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.native import decode
from suffice.ops.native.decode import DECODE
from suffice.ops.op import is_transformed
from suffice.patterns import Global, Window
from suffice.spec import AttentionSpec
from suffice.utils.records import is_whole

if TYPE_CHECKING:
    from suffice.utils.protocols import LayerLike

A = TypeVar("A")

MIXED_AT_ONCE = 256  # positions; a longer chunk is mixed piece by piece, and costs no square


@dataclass(frozen=True, kw_only=True, eq=False)
class Step(Inputs):
    """The inputs of a call that continues a state."""

    state: LayerState
    at: StepPositions

    def once(self, key: Hashable, make: Callable[[], A]) -> A:
        return self.at.once(key, make)

    def read(
        self, layer: LayerLike, q: Tensor, cached: tuple[Tensor, ...], shared: SharedKV | None
    ) -> Tensor:
        """Return the attention of q [B, H, T, D] to all tokens so far; cache the new ones."""
        if not self.at.length:
            return q.new_zeros(*q.shape[:3], layer.spec.value_width)
        if layer.recurrence is not None:
            return self.state.recur(layer, q, cached, self)
        if layer.features is not None:
            return self.state.sum_up(layer, q, cached, self.at)
        kv = SharedKV() if shared is None else shared
        call = self.state.coded_call(layer, q, self.at)
        if layer.spec.shares is not None:
            self.state.follow(self.at)
        elif call is not None:
            kv.codes = self.state.append_codes(layer, cached, self.at)
        else:
            kv.cached = self.state.append(layer, cached, self.at)
        if call is not None and kv.codes is not None:
            return self.state.read_codes(layer, q, kv.codes, self.at, call)
        return layer.attend(q, self.state.view(kv.tensors(), self.at))

    def recall(self, past: nn.Module, unrotated: tuple[Tensor, ...], local: Tensor) -> Tensor:
        return self.state.segments.recall(past, unrotated, local, self.at.valid)


class Segments:
    """Infini's memory of earlier segments: of all rows together, or of each that counts its own."""

    def __init__(self) -> None:
        self.rows = [InfiniState()]

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)

    def recall(
        self,
        past: nn.Module,
        unrotated: tuple[Tensor, ...],
        local: Tensor,
        valid: Tensor | None,
    ) -> Tensor:
        """Return the outputs of new positions, and add their keys and values."""
        batch = len(local)
        if valid is None and len(self.rows) == 1:
            return past.gated(self.rows[0].read(past, *unrotated), local)
        if len(self.rows) != batch:
            self._split(batch, local.device)
        out = local.clone()
        for number, row in enumerate(self.rows):
            real = slice(None) if valid is None else valid[number]
            row_inputs = (x[number : number + 1, :, real] for x in unrotated)
            recalled = row.read(past, *row_inputs)
            out[number, :, real] = past.gated(recalled, local[number : number + 1, :, real])[0]
        return out

    def _split(self, batch: int, device: torch.device) -> None:
        (shared,) = self.rows
        self.rows = [_copied(shared) for _ in range(batch)]
        for number, row in enumerate(self.rows):
            row.select(torch.tensor([number], device=device))

    def can_drop(self, places: Tensor | None, positions: int) -> bool:
        """Return whether the last positions can be removed; places as of `StepPositions.cached`."""
        pairs = zip(self.rows, self._real(places, positions), strict=True)
        return all(row.can_drop(real) for row, real in pairs)

    def drop_last(self, places: Tensor | None, positions: int) -> None:
        for row, real in zip(self.rows, self._real(places, positions), strict=True):
            row.drop(real)

    def _real(self, places: Tensor | None, positions: int) -> list[int]:
        if places is None:
            return [positions] * len(self.rows)
        counts = (places[:, places.shape[1] - positions :] >= 0).sum(dim=1).tolist()
        return counts[: len(self.rows)]  # rows that are together are alike

    def select(self, rows: Tensor) -> None:
        if len(self.rows) == 1:
            self.rows[0].select(rows)
        else:
            self.rows = [_copied(self.rows[number]) for number in rows.tolist()]

    def reset(self) -> None:
        self.rows = [InfiniState()]


def _copied(row: InfiniState) -> InfiniState:
    copy = InfiniState()
    copy.sums, copy.open = row.sums, row.open
    return copy


class Entries(NamedTuple):
    """Entries of a row of a cache: how to index them, and how many they are."""

    index: slice | Tensor
    count: int


class LayerState:
    """The KV cache, or the sums of features, of one attention layer, made by `Attention.state`."""

    def __init__(self, spec: AttentionSpec, memory: Memory) -> None:
        check_memory(spec, memory)
        self.spec, self.memory = spec, memory
        cached, unmixed = spec.memories(memory)
        self.remembered = None  # earlier positions that a window may hold or read again
        if cached.window is not None:  # after a drop of `spare`, window + spare are still needed
            self.remembered = cached.window + 2 * cached.spare + cached.grain
        self.followed = 0  # positions read, of layers without a store: sums, or another's cache
        self.offered: StepPositions | None = None  # by the model, for all its layers
        self.kind = 0  # layers of one kind have equal specs and memories
        self.batch: int | None = None
        self.device = torch.device("cpu")  # of the latest tensor
        self.dtype: torch.dtype | None = None  # of keys and values
        self.places: Tensor | None = None  # [B, n] of the last n positions, -1 = padding
        self.sums: running_sums.State | None = None
        self.recurrent: RecurrentState | None = None
        self.store = cached.build() if spec.cached_widths else None
        self.unmixed = unmixed.build() if spec.unmixed_widths else None
        self.segments = Segments()
        self.coded_calls: dict[Hashable, AttentionCall] = {}
        self.plans: dict[Hashable, AttentionCall] = {}  # see `Attention._planned`
        window, reach = memory.window, spec.pattern.reach
        self.sees_all = window is None or (reach is not None and reach <= window)
        self.pattern = spec.pattern
        if not self.sees_all:
            near = Window(window)
            self.pattern = spec.pattern & (near | Global(memory.sinks) if memory.sinks else near)

    @property
    def length(self) -> int:
        """Positions read so far, padding included."""
        return self.followed if self.store is None else self.store.length

    @property
    def exact(self) -> bool:
        """True if any chunks give what one call without a state gives, within rounding."""
        return self.sees_all and not self.memory.lossy

    @property
    def nbytes(self) -> int:
        sums = () if self.sums is None else (self.sums.sums, *self.sums.stabilizer)
        tensors = [x for x in (*sums, self.places, self.recurrent) if x is not None]
        return sum(x.nbytes for x in (*tensors, self.segments, *self.stores()))

    def stores(self) -> list[Store]:
        """Return what holds tensors by position: none for layers that keep sums alone."""
        return [store for store in (self.store, self.unmixed) if store is not None]

    def latest(self) -> tuple[Tensor, ...]:
        """Return all cached keys and values; none of a layer that reads another one's."""
        return () if self.store is None else self.store.latest(self.length)

    def step(self, x: Tensor, valid: Tensor | None) -> Step:
        """Return the inputs of a call with new tokens x [B, T, M], checked."""
        at = self.begin(x, valid)
        if valid is not None:
            x = x.masked_fill(~valid[..., None], 0.0)
        masks = UNMASKED if valid is None else MaskInputs(q_valid=valid)
        return Step(x=x, source=x, masks=masks, rows=at.rows, state=self, at=at)

    def begin(self, tokens: Tensor, valid: Tensor | None) -> StepPositions:
        """Check the next tokens [B, T, ...] and return their positions; raises as `step`."""
        if self.batch not in (None, tokens.shape[0]):
            raise ShapeError(
                f"{tokens.shape[0]} rows for a state of {self.batch}; give that many, select rows "
                "of the state, or reset it."
            )
        if not self._can_share(self.offered, tokens, valid):
            self.offered = StepPositions.after(self.places, self.length, tokens, valid)
        at = self.offered
        if self.memory.window is not None and at.valid is not None:
            at.once(("checked", self.memory), lambda: self._check_padding(at))
        self._check_room(at)
        return at

    def _can_share(
        self, offered: StepPositions | None, tokens: Tensor, valid: Tensor | None
    ) -> bool:
        return (
            offered is not None
            and offered.cached is self.places
            and offered.valid is valid
            and (offered.batch, offered.length) == tokens.shape[:2]
            # while compiling, the model that offers it has just made it: inductor loses a symbol
            # that is found to equal another
            and (torch.compiler.is_compiling() or offered.start == self.length)
            and offered.device == tokens.device
        )

    def _check_room(self, at: StepPositions) -> None:
        if self.store is not None:
            self.store.check_room(at.length)
        longest, position = self.spec.mixing.max_length, self.spec.position
        limited = longest is not None or position.max_length is not None
        if not limited or not at.length or torch.compiler.is_compiling():
            return
        keys = at.start + at.length
        if at.places is not None:
            position.check_length(at.once("tokens", lambda: int(at.places.max()) + 1))
            keys = at.once("keys", lambda: int(at.rows.positions.max()) + 1)
        else:
            position.check_length(keys)
        if longest is not None and keys > longest:
            raise ShapeError(
                f"{keys} keys are more than the {longest} this {type(self.spec.mixing).__name__} "
                "was built for; reset the state, or extend the layer: "
                f"suffice.extend(layer, {keys})."
            )

    def _check_padding(self, at: StepPositions) -> None:
        valid, begun = at.rows.valid, real_tokens(at.before)[:, None] > 0
        begun = torch.cat([begun, valid[:, :-1]], dim=1).cummax(dim=1).values
        if self.memory.sinks or bool((begun & ~valid).any()):
            raise ConfigError(
                f"{self.memory!r} counts every position after the first real token of a row; give "
                "padding on the left alone and no sinks, or use Dynamic()."
            )

    def append(
        self, layer: LayerLike, cached: tuple[Tensor, ...], at: StepPositions
    ) -> CachedTensors:
        """Cache encoded new tokens; return all that is kept."""
        return self._store(self.store.append, layer.mixing, cached, at)

    def append_codes(
        self, layer: LayerLike, cached: tuple[Tensor, ...], at: StepPositions
    ) -> tuple[QuantisedStore, Slot]:
        """Cache encoded new tokens; return a quantised cache, and where its codes are."""
        return self.store, self._store(self.store.append_encoded, layer.mixing, cached, at)

    def follow(self, at: StepPositions) -> None:
        """Count new tokens that another layer has cached."""
        self.followed += at.length
        self._advance(at)

    def view(self, cached: CachedTensors, at: StepPositions) -> KVView:
        """Return keys and values with the masks of the new queries."""
        keys = cached.tensors[0].shape[2]
        position = self.spec.position
        relative = self.pattern.relative and (position.relative or not position.biases)
        where = self.places, cached.first, cached.sinks, keys
        masks, pairwise = at.masks(*where, relative=relative)
        return KVView(cached.tensors, masks, self.pattern, pairwise, at, self.kind, self.plans)

    def _store(
        self,
        into: Callable[..., A],
        mixing: nn.Module,
        cached: tuple[Tensor, ...],
        at: StepPositions,
    ) -> A:
        cached = promote_kv_dtype(cached, self.dtype)
        if "mixing" in self.spec.beyond_pairs:
            raw, v = self._mix(mixing, cached[0], cached[-1], at)
            cached = cached[0], v.to(raw.dtype)
            if self.unmixed is not None:
                self.unmixed.append(raw)
        self.dtype = cached[0].dtype
        stored = into(*cached)
        self._advance(at)
        return stored

    def reserve(self, at: StepPositions, dtype: torch.dtype) -> Slot:
        """Append positions whose keys and values the caller writes, in `dtype` if they begin."""
        if not self.length:
            sizes = ((at.batch, heads, 0, width) for heads, width in self.spec.cached_widths)
            self.store.append(*(torch.empty(*size, dtype=dtype) for size in sizes))
            self.dtype = dtype
        slot = self.store.reserve(at.length)
        if "mixing" in self.spec.beyond_pairs:
            unmixed = slot.recent if self.unmixed is None else self.unmixed.reserve().recent
            slot = slot._replace(unmixed=unmixed)
        self._advance(at)
        return slot

    def sum_up(
        self, layer: LayerLike, q: Tensor, cached: tuple[Tensor, ...], at: StepPositions
    ) -> Tensor:
        """Return the attention of queries [B, H, T, D] by sums of features; add the new tokens."""
        k, v = layer.spec.encoder.expand(layer, cached)
        if "mixing" in self.spec.beyond_pairs:
            raw, v = self._mix(layer.mixing, k, v, at)
            self.unmixed.append(raw)
        call = AttentionCall.of(
            self.spec, at.length, at.length, device=q.device.type, dtype=q.dtype
        )
        out, self.sums = scan.stream(q, k, v, at.rows.valid, call, layer.features, self.sums)
        self.followed += at.length
        self._advance(at)
        return out

    def recur(self, layer: LayerLike, q: Tensor, cached: tuple[Tensor, ...], step: Step) -> Tensor:
        """Return the outputs [B, H, T, E] of a recurrence; move its state on."""
        rows = RowLayout(valid=step.at.rows.valid)
        out, self.recurrent = layer.recur(q, cached, step.x, rows, self.recurrent)
        self.followed += step.at.length
        self._advance(step.at)
        return out

    def _advance(self, at: StepPositions) -> None:
        self.batch, self.device = at.batch, at.device
        self.offered = None
        self.places = at.with_cached(self.remembered)

    def coded_call(self, layer: LayerLike, q: Tensor, at: StepPositions) -> AttentionCall | None:
        """Return the call if the native kernels can read a quantised cache as it is, else None."""
        if not self.memory.lossy:
            return None
        keys = self.length + at.length
        key = layer.impl, at.places is None, q.dtype, at.device.type, at.length
        cacheable = not (is_transformed() or torch.is_grad_enabled())
        if cacheable and key in self.coded_calls:
            return self.coded_calls[key].grown(keys)
        call = AttentionCall.of(
            self.spec,
            at.length,
            keys,
            plain=at.places is None,
            device=at.device.type,
            dtype=q.dtype,
        )
        allowed = layer.impl in ("auto", DECODE.name)
        as_read = set(self.spec.cached_widths) == {(call.num_kv_heads, call.head_dim)}
        if not allowed or not as_read or not decode.reads_codes(self.memory, call):
            return None
        if cacheable:
            self.coded_calls[key] = call
        return call

    def read_codes(
        self,
        layer: LayerLike,
        q: Tensor,
        codes: tuple[QuantisedStore, Slot],
        at: StepPositions,
        call: AttentionCall,
    ) -> Tensor:
        """Return the attention to a quantised cache, by kernels that read codes."""
        store, slot = codes
        if self.memory.window is None:
            masks = at.masks(self.places, 0, 0, self.length)[0]
        elif at.places is None:
            masks = UNMASKED
        else:
            masks = MaskInputs(q_positions=at.rows.positions)
        sinks = layer.parts().sinks
        out, finite = decode.attend_coded(q, store, slot, self.memory, masks, call, sinks)
        if finite or call.unrestricted:
            return out
        return layer.attend(q, self.view(store.cached(), at))

    def _mix(
        self, mixing: nn.Module, k: Tensor, v: Tensor, at: StepPositions
    ) -> tuple[Tensor, Tensor]:
        """Return new values [B, G, T, E] before and after the mixing."""
        raw = v if at.rows.valid is None else v.masked_fill(~at.rows.valid[:, None, :, None], 0.0)
        if not at.start:
            return raw, mixing(k, v, UNPADDED if at.rows.valid is None else at.rows)[1]
        earlier = self.store if self.unmixed is None else self.unmixed
        return raw, mix_next(mixing, raw, at, earlier, self.spec.mixing.history)

    def can_drop(self, positions: int) -> bool:
        """Return whether the last positions can be removed, exactly."""
        if not is_whole(positions, least=0) or positions > self.length:
            return False
        if (self.sums is not None or self.recurrent is not None) and positions:
            return False
        segments = (
            self.segments.can_drop(self.places, positions) or "past" not in self.spec.beyond_pairs
        )
        known = self._positions_known_without(positions)
        return segments and known and all(store.can_drop(positions) for store in self.stores())

    def _positions_known_without(self, positions: int) -> bool:
        """Return whether enough positions of padded rows are known once the last are dropped."""
        if self.places is None or self.remembered is None or self.memory.grain:
            return True  # what is not coded is never more than what is remembered
        left = self.length - positions
        needed = min(self.remembered - self.memory.spare - 1, left)
        return self.places.shape[1] - positions >= needed

    def drop_last(self, positions: int) -> None:
        """Remove the last positions, as if they had never been read.

        Raises:
            ConfigError: if they cannot be; nothing has changed then.
        """
        if not self.can_drop(positions):
            summed = "sums of features" if self.sums is not None else "the state of a recurrence"
            what = repr(self.memory) if self.store is not None else summed
            raise ConfigError(
                f"drop_last({positions}) of {self.length} positions in {what} is not possible; "
                "call can_drop first, and keep a copy where drafts may be refused."
            )
        for store in self.stores():
            store.drop_last(positions)
        self.followed -= positions if self.store is None else 0
        self.segments.drop_last(self.places, positions)
        if self.places is not None and positions:
            self.places = self.places[:, :-positions]

    def select(self, rows: Tensor) -> None:
        for store in (*self.stores(), self.segments):
            store.select(rows)
        if self.places is not None:
            self.places = self.places.index_select(0, rows)
        if self.sums is not None:
            marks = (m if m is None else m.index_select(1, rows) for m in self.sums.stabilizer)
            sums = self.sums.sums.index_select(0, rows)
            self.sums = running_sums.State(sums, type(self.sums.stabilizer)(*marks))
        if self.recurrent is not None:
            self.recurrent = self.recurrent.select(rows)
        self.batch = len(rows)

    @property
    def can_join(self) -> bool:
        """True if all keys and values are kept, as they are, and nothing else is."""
        if "shares" in self.spec.beyond_pairs:
            return True
        kept = type(self.store) is GrowingStore and self.unmixed is None
        return kept and "past" not in self.spec.beyond_pairs

    def join(self, rows: list[tuple[LayerState, int]], entries: list[Entries]) -> None:
        """Read rows of other states, padded on the left, into this empty one."""
        lengths = [each.count for each in entries]
        longest = max(lengths)
        if self.store is None:
            self.followed = longest
        else:
            blank = (
                x.new_zeros(1, 1, 1, 1).expand(len(rows), x.shape[1], longest, x.shape[3])
                for x in rows[0][0].latest()
            )
            self.store.append(*blank)  # what is masked must be finite
            for number, ((state, row), real) in enumerate(zip(rows, entries, strict=True)):
                for new, held in zip(self.latest(), state.latest(), strict=True):
                    new[number, :, longest - real.count :] = held[row, :, real.index]
        self.batch, self.device, self.dtype = len(rows), rows[0][0].device, rows[0][0].dtype
        if min(lengths) < longest:
            starts = longest - torch.tensor(lengths, device=self.device)[:, None]
            at = torch.arange(longest, device=self.device) - starts
            self.places = at.clamp(min=-1)

    def put(self, row: int, other: LayerState, entries: Entries) -> None:
        """Replace a row by the only row of a state that has read no more, padded on the left."""
        start = self.length - entries.count
        for mine, theirs in zip(self.latest(), other.latest(), strict=True):
            mine[row, :, :start] = 0.0  # what is masked must be finite
            mine[row, :, start:] = theirs[0, :, entries.index]
        self.offered = None

    def reset(self) -> None:
        for store in (*self.stores(), self.segments):
            store.reset()
        self.followed, self.batch, self.places, self.sums = 0, None, None, None
        self.dtype = self.recurrent = None
        self.offered = None


def promote_kv_dtype(cached: tuple[Tensor, ...], current: torch.dtype | None) -> tuple[Tensor, ...]:
    """Return new keys and values in the dtype of the cache; refuse to round them.

    Autocast casts the outputs of maps to half precision but not columns of x.
    """
    dtype = cached[0].dtype
    for x in cached[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    if current is None or current is dtype:
        return tuple(x.to(dtype) for x in cached)
    widens = torch.promote_types(dtype, current) is current
    if not widens or not torch.is_autocast_enabled(cached[0].device.type):
        raise ConfigError(
            f"this chunk is {dtype} but the cache is {current}; read all chunks of a text with the "
            "same dtype and autocast, or reset the state."
        )
    return tuple(x.to(current) for x in cached)


def mix_next(
    mixing: nn.Module, raw: Tensor, at: StepPositions, earlier: Store, history: int | None
) -> Tensor:
    """Return new values [B, G, T, E] after the mixing of `history` earlier ones; None: all."""
    count = _history_tokens(at, history)
    values = torch.cat([earlier.latest(count)[0], raw], dim=2)
    new = at.rows.positions
    if at.before is None:
        past = torch.arange(at.start - count, at.start, device=raw.device)[None]
    else:
        past = at.before[:, at.before.shape[1] - count :].clamp(min=0)
    places = torch.cat([past, new], dim=1)
    pieces, step = [], raw.shape[2] if history is None else MIXED_AT_ONCE
    for a in range(0, raw.shape[2], max(step, 1)):
        b = min(a + step, raw.shape[2])
        first = _first_read(places[:, : count + a], new[:, a : a + 1] - history) if a else 0
        before, now = values[:, :, first : count + a], values[:, :, count + a : count + b]
        pieces.append(mixing.continued(before, now, new[:, a:b], places[:, first : count + b]))
    return torch.cat(pieces, dim=2) if len(pieces) != 1 else pieces[0]


def _first_read(places: Tensor, oldest: Tensor) -> int:
    """Return the first column of places [B, n] with a position from `oldest` [B, 1] on."""
    read = (places >= oldest).any(dim=0).nonzero()
    return int(read[0]) if len(read) else places.shape[1]


def _history_tokens(at: StepPositions, history: int | None) -> int:
    if history is None or at.before is None:
        return at.start if history is None else min(history, at.start)

    def columns() -> int:
        first = (real_tokens(at.before) - history)[:, None]
        read = ((at.before >= first) & (at.before >= 0)).any(dim=0).nonzero()
        return at.before.shape[1] - int(read[0]) if len(read) else 0

    return at.once(("history", history), columns)
