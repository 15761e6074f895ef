"""What a layer keeps of a sequence while it is read in pieces.

Any pieces give what one call gives: the state knows where the next token stands. Rows of a batch
may be padded; then each row counts its own real tokens.

Letters: B batch, G key/value heads, T new positions, S held positions, D and E head widths.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, ShapeError
from suffice.kernels import FeatureMap
from suffice.layers.alike import alike
from suffice.layers.arguments import check_memory
from suffice.layers.history import history_of, kept, mixed, placed, remembered
from suffice.layers.next import Next, after, real
from suffice.layers.recall import Recalled
from suffice.layers.seen import Seen, where_of
from suffice.memory import CachedTensors, Memory, Slot, Store
from suffice.ops import running_sums, scan
from suffice.ops.call import AttentionCall
from suffice.patterns import Global, Window
from suffice.spec import AttentionSpec

A = TypeVar("A")


class LayerState:
    """The keys and values, or sums of features, of one attention layer.

    Made by `Attention.state`; a call with `state=` reads it and adds to it.

    Args:
        spec: of the layer.
        memory: what is kept; kernels of features keep sums and take `Dynamic()` alone.

    Raises:
        ConfigError: if the layer cannot stream, or not with this memory.
    """

    def __init__(self, spec: AttentionSpec, memory: Memory) -> None:
        check_memory(spec, memory)
        self.spec, self.memory = spec, memory
        self.remembered = remembered(spec, memory)
        self.summed = 0  # positions, where sums are what is kept
        self.offered: Next | None = None
        self.kind = 0  # layers of one kind have equal specs and memories
        self.batch: int | None = None
        self.device = torch.device("cpu")  # of what was read last
        self.dtype: torch.dtype | None = None  # of keys and values
        self.places: Tensor | None = None  # [B, n] of the last n positions, -1 = padding
        self.sums: running_sums.State | None = None
        weighs, mixes = spec.kernel.weighs_pairs, spec.mixing.mixes
        self.tied = spec.one_tensor and not mixes
        # learned keys hold their bias at padding, where a mixing reads zeros
        learned = spec.encoder.learns_keys
        self.keys_are_values = weighs and spec.one_tensor and not learned
        self.store = kept(spec, memory).build() if weighs else None
        self.recalled = Recalled()
        self.raw = history_of(spec, memory) if mixes and not self.keys_are_values else None
        self.asked: dict[Hashable, AttentionCall] = {}  # of the kernels for few queries
        window, reach = memory.window, spec.pattern.reach
        self.sees_all = window is None or (reach is not None and reach <= window)
        self.pattern = spec.pattern
        if not self.sees_all:
            near = Window(window)
            self.pattern = spec.pattern & (near | Global(memory.sinks) if memory.sinks else near)

    @property
    def length(self) -> int:
        """Positions read so far, padding included."""
        return self.summed if self.store is None else self.store.length

    @property
    def exact(self) -> bool:
        """True if any pieces give what one call without a state gives, within rounding."""
        return self.sees_all and not self.memory.lossy

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is kept, spare room included."""
        sums = () if self.sums is None else (self.sums.sums, *self.sums.mark)
        given = [x for x in (*sums, self.places) if x is not None]
        tensors = sum(x.numel() * x.element_size() for x in given)
        return tensors + self.recalled.nbytes + sum(store.nbytes for store in self._stores())

    def _stores(self) -> list[Store]:
        return [store for store in (self.store, self.raw) if store is not None]

    def begin(self, batch: int, length: int, valid: Tensor | None, device: torch.device) -> Next:
        """Return where the next tokens stand, once they are found to fit.

        Args:
            batch: B.
            length: T.
            valid: bool [B, T], True = a real token; None = all are.
            device: of the tokens.

        Raises:
            ShapeError: for another number of rows than before, or more positions than the mixing
                knows.
            ConfigError: for padding that a rolling memory would count as positions, or more
                positions than the memory has room for.
        """
        if self.batch not in (None, batch):
            raise ShapeError(
                f"{batch} rows for a state of {self.batch}; give as many, select rows of the "
                "state, or reset it."
            )
        if not self._takes(self.offered, batch, length, valid, device):
            self.offered = after(self.places, self.length, batch, length, valid, device)
        new = self.offered
        if self.memory.window is not None and new.valid is not None:
            new.once(("checked", self.memory), lambda: self._check_padding(new))
        self._check_room(new)
        return new

    def _takes(
        self,
        offered: Next | None,
        batch: int,
        length: int,
        valid: Tensor | None,
        device: torch.device,
    ) -> bool:
        """Return whether what another layer found of the new positions holds here, too."""
        return (
            offered is not None
            and offered.told is self.places
            and offered.valid is valid
            and (offered.length, offered.batch) == (length, batch)
            # while compiling, the model that offers it has just made it: inductor loses a symbol
            # that is found to equal another
            and (torch.compiler.is_compiling() or offered.start == self.length)
            and offered.device == device
        )

    def _check_room(self, new: Next) -> None:
        """Refuse positions beyond what the memory holds or the mixing maps."""
        if self.store is not None:
            self.store.check_room(new.length)
        longest = self.spec.mixing.max_length
        if longest is None or not new.length or torch.compiler.is_compiling():
            return
        reach = new.start + new.length
        if new.places is not None:
            reach = new.once("reach", lambda: int(new.rows.positions.max()) + 1)
        if reach > longest:
            raise ShapeError(
                f"{reach} keys are more than the {longest} this {type(self.spec.mixing).__name__} "
                "was built for; reset the state, or extend the layer: "
                f"suffice.extend(layer, {reach})."
            )

    def _check_padding(self, new: Next) -> None:
        """Refuse padding that would push real tokens out of a rolling memory."""
        valid, begun = new.rows.valid, real(new.before)[:, None] > 0
        begun = torch.cat([begun, valid[:, :-1]], dim=1).cummax(dim=1).values
        if self.memory.sinks or bool((begun & ~valid).any()):
            raise ConfigError(
                f"{self.memory!r} counts every position after the first real token of a row; give "
                "padding on the left alone and no sinks, or use Dynamic()."
            )

    def add(self, mixing: nn.Module, k: Tensor, v: Tensor, new: Next) -> Seen:
        """Keep new keys and values; return all that attention reads.

        Args:
            mixing: of the layer.
            k: [B, G, T, D], turned.
            v: [B, G, T, E].
            new: what `begin` gave.
        """
        return self.seen(self._keep(self.store.append, mixing, k, v, new), new)

    def seen(self, held: CachedTensors, new: Next) -> Seen:
        """Return what the new positions read of what is held."""
        keys = held.tensors[0].shape[2]
        restricted = where_of(new, self.pattern, self.places, held.first, held.sinks, keys)
        return Seen(held.tensors[0], held.tensors[-1], *restricted)

    def append_encoded(self, mixing: nn.Module, k: Tensor, v: Tensor, new: Next) -> Slot:
        """Keep new keys and values as `add` does; say where they and what is coded lie."""
        return self._keep(self.store.append_encoded, mixing, k, v, new)

    def _keep(
        self, into: Callable[..., A], mixing: nn.Module, k: Tensor, v: Tensor, new: Next
    ) -> A:
        k, v = alike(k, v, self.dtype)
        raw, v = self._mixed(mixing, k, v, new)
        self.dtype = k.dtype
        kept = into(*((k,) if self.tied else (k, v.to(k.dtype))))
        if self.raw is not None:
            self.raw.append(raw)
        self._advance(new)
        return kept

    def reserve(self, new: Next) -> Slot:
        """Append one position whose keys and values the caller writes.

        Raises:
            ConfigError: if the memory has no room for it; nothing has changed then.
        """
        slot = self.store.reserve()
        if self.spec.mixing.mixes:
            unmixed = slot.recent if self.raw is None else self.raw.reserve().recent
            slot = slot._replace(unmixed=unmixed)
        self._advance(new)
        return slot

    def sum_up(
        self,
        mixing: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        new: Next,
        problem: AttentionCall,
        features: FeatureMap,
    ) -> Tensor:
        """Return what queries [B, H, T, D] read from sums of features, and add to these."""
        raw, v = self._mixed(mixing, k, v, new)
        if self.raw is not None:
            self.raw.append(raw)
        out, self.sums = scan.stream(q, k, v, new.rows.valid, problem, features, self.sums)
        self.summed += new.length
        self._advance(new)
        return out

    def _mixed(self, mixing: nn.Module, k: Tensor, v: Tensor, new: Next) -> tuple[Tensor, Tensor]:
        """Return the new values as they are, and after the mixing."""
        if not self.spec.mixing.mixes:
            return v, v
        source = self.store if self.raw is None else self.raw
        return mixed(mixing, k, v, new, source, self.spec.mixing.history)

    def _advance(self, new: Next) -> None:
        self.batch, self.device = new.batch, new.device
        self.offered = None
        self.places = new.after(self.remembered)

    def can_drop(self, positions: int) -> bool:
        """Return whether the last positions can be taken back, exactly."""
        whole = isinstance(positions, int) and not isinstance(positions, bool)
        if not whole or not 0 <= positions <= self.length:
            return False
        if self.sums is not None and positions:
            return False
        recalled = self.recalled.can_drop(self.places, positions) or not self.spec.past.reads
        left = self.length - positions
        told = placed(self.places, positions, left, self.remembered, self.memory)
        return recalled and told and all(store.can_drop(positions) for store in self._stores())

    def drop_last(self, positions: int) -> None:
        """Take the last positions back, as if they had never been read.

        Raises:
            ConfigError: if they cannot be; nothing has changed then.
        """
        if not self.can_drop(positions):
            what = "sums of features" if self.sums is not None else repr(self.memory)
            raise ConfigError(
                f"drop_last({positions}) of {self.length} positions in {what} is not possible; ask "
                "can_drop first, and keep a copy where drafts may be refused."
            )
        for store in self._stores():
            store.drop_last(positions)
        self.recalled.drop_last(self.places, positions)
        if self.places is not None and positions:
            self.places = self.places[:, :-positions]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order; a row may come several times."""
        for store in (*self._stores(), self.recalled):
            store.select(rows)
        if self.places is not None:
            self.places = self.places.index_select(0, rows)
        if self.sums is not None:
            marks = (m if m is None else m.index_select(1, rows) for m in self.sums.mark)
            sums = self.sums.sums.index_select(0, rows)
            self.sums = running_sums.State(sums, type(self.sums.mark)(*marks))
        self.batch = len(rows)

    def reset(self) -> None:
        """Forget everything."""
        for store in (*self._stores(), self.recalled):
            store.reset()
        self.summed, self.batch, self.places, self.sums = 0, None, None, None
        self.dtype = None
        self.offered = None
