"""What a layer keeps of a sequence while it is read in pieces.

Any pieces give what one call gives: the state knows where the next token stands. Rows of a batch
may be padded; then each row counts its own real tokens.

Letters: B batch, G key/value heads, T new positions, S held positions, D and E head widths.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, ShapeError
from suffice.kernels import FeatureMap
from suffice.layers.place import positions as count_real
from suffice.memory import Dynamic, Held, Memory, Rolling, Store
from suffice.mixing import Rows
from suffice.ops import running, scan
from suffice.ops.problem import Problem
from suffice.ops.where import Where
from suffice.patterns import Global, Window
from suffice.spec import AttentionSpec

PIECE = 256  # positions mixed at once, so that a long piece costs no square


class Next(NamedTuple):
    """The new positions of one call.

    Args:
        rows: for the mixing and for positions that turn.
        places: int [B, T], position of each token in its row, -1 = padding; None = all rows are
            real and alike.
    """

    rows: Rows
    places: Tensor | None


class Seen(NamedTuple):
    """What attention reads.

    Args:
        k: [B, G, S, D].
        v: [B, G, S, E].
        where: what restricts it.
        pairwise: True if the positions name pairs one by one.
    """

    k: Tensor
    v: Tensor
    where: Where
    pairwise: bool


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
        _refuse(spec, memory)
        self.spec, self.memory = spec, memory
        self.length = 0
        self.batch: int | None = None
        self.places: Tensor | None = None  # [B, n] of the last n positions, -1 = padding
        self.sums: running.State | None = None
        self.tied = not (
            spec.projections.learns_keys
            or spec.projections.learns_values
            or spec.position.rotates
            or spec.mixing.mixes
        )
        weighs, mixes = spec.kernel.weighs_pairs, spec.mixing.mixes
        unrotated = not (spec.projections.learns_keys or spec.position.rotates)
        self.keys_are_values = weighs and unrotated and not spec.projections.learns_values
        self.store = _store(spec, memory) if weighs else None
        self.raw = _history(spec, memory) if mixes and not self.keys_are_values else None
        window, reach = memory.window, spec.pattern.reach
        self.sees_all = window is None or (reach is not None and reach <= window)
        self.pattern = spec.pattern
        if not self.sees_all:
            near = Window(window)
            self.pattern = spec.pattern & (near | Global(memory.sinks) if memory.sinks else near)

    @property
    def exact(self) -> bool:
        """True if any pieces give what one call without a state gives, within rounding."""
        return self.sees_all and not self.memory.rounds

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is kept, spare room included."""
        sums = () if self.sums is None else (self.sums.sums, *self.sums.mark)
        given = [x for x in (*sums, self.places) if x is not None]
        kept = sum(x.numel() * x.element_size() for x in given)
        return kept + sum(store.nbytes for store in self._stores())

    def _stores(self) -> list[Store]:
        return [store for store in (self.store, self.raw) if store is not None]

    def begin(self, batch: int, length: int, valid: Tensor | None, device: torch.device) -> Next:
        """Return where the next tokens stand.

        Args:
            batch: B.
            length: T.
            valid: bool [B, T], True = a real token; None = all are.
            device: of the tokens.

        Raises:
            ShapeError: for another number of rows than before.
            ConfigError: for padding that a rolling memory would count as positions.
        """
        if self.batch not in (None, batch):
            raise ShapeError(
                f"{batch} rows for a state of {self.batch}; give as many, select rows of the "
                "state, or reset it."
            )
        self.batch = batch
        if valid is None and self.places is None:
            at = torch.arange(self.length, self.length + length, device=device)[None]
            return Next(Rows(positions=at), None)
        if valid is None:
            valid = torch.ones(batch, length, dtype=torch.bool, device=device)
        if self.places is None:
            self.places = torch.arange(self.length, device=device).expand(batch, -1)
        counts = self._counts()
        if self.memory.window is not None:
            self._check_padding(valid, counts)
        at = counts[:, None] + count_real(valid, None)
        return Next(Rows(valid=valid, positions=at), at.masked_fill(~valid, -1))

    def _check_padding(self, valid: Tensor, counts: Tensor) -> None:
        """Refuse padding that would push real tokens out of a rolling memory."""
        begun = torch.cat([counts[:, None] > 0, valid[:, :-1]], dim=1).cummax(dim=1).values
        if self.memory.sinks or bool((begun & ~valid).any()):
            raise ConfigError(
                f"{self.memory!r} counts every position after the first real token of a row; give "
                "padding on the left alone and no sinks, or use Dynamic()."
            )

    def _counts(self) -> Tensor:
        """Return how many real tokens each row has, [B]."""
        if not self.places.shape[1]:
            return self.places.new_zeros(self.places.shape[0])
        return self.places.max(dim=1).values + 1

    def add(self, mixing: nn.Module, k: Tensor, v: Tensor, new: Next) -> Seen:
        """Keep new keys and values; return all that attention reads.

        Args:
            mixing: of the layer.
            k: [B, G, T, D], turned.
            v: [B, G, T, E].
            new: what `begin` gave.
        """
        first = self.length == 0
        raw, v = self._mixed(mixing, k, v, new)
        held = self.store.append(*((k,) if self.tied else (k, v)))
        if self.raw is not None:
            self.raw.append(raw)
        self._advance(k.shape[2], new)
        where, pairwise = self._where(held, new, k.shape[2], first)
        parts = held.parts
        return Seen(parts[0], parts[0] if self.tied else parts[1], where, pairwise)

    def sum_up(
        self,
        mixing: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        new: Next,
        problem: Problem,
        features: FeatureMap,
    ) -> Tensor:
        """Return what queries [B, H, T, D] read from sums of features, and add to these."""
        raw, v = self._mixed(mixing, k, v, new)
        if self.raw is not None:
            self.raw.append(raw)
        out, self.sums = scan.stream(q, k, v, new.rows.valid, problem, features, self.sums)
        self._advance(k.shape[2], new)
        return out

    def _mixed(self, mixing: nn.Module, k: Tensor, v: Tensor, new: Next) -> tuple[Tensor, Tensor]:
        """Return the new values as they are, and after the mixing."""
        if not self.spec.mixing.mixes:
            return v, v
        valid, raw = new.rows.valid, v
        if valid is not None:
            raw = v.masked_fill(~valid[:, None, :, None], 0.0)
        if self.length == 0:
            out = mixing(k, v, new.rows if valid is not None else Rows())[1]
        else:
            out = self._continued(mixing, raw, new)
        return raw, out

    def _continued(self, mixing: nn.Module, raw: Tensor, new: Next) -> Tensor:
        """Mix new values with those before them, piece by piece."""
        history = self.spec.mixing.history
        past = self._past(history)
        source = self.store if self.raw is None else self.raw
        values = torch.cat([source.latest(past)[0], raw], dim=2)
        at = new.rows.positions
        if self.places is None:
            places = torch.arange(self.length - past, self.length, device=raw.device)[None]
        else:
            places = self.places[:, self.places.shape[1] - past :].clamp(min=0)
        places = torch.cat([places, at], dim=1)
        outs, step = [], raw.shape[2] if history is None else PIECE
        for a in range(0, raw.shape[2], max(step, 1)):
            b = min(a + step, raw.shape[2])
            span = values[:, :, a : past + b]
            outs.append(
                mixing.continued(
                    span[:, :, :past], span[:, :, past:], at[:, a:b], places[:, a : past + b]
                )
            )
        return torch.cat(outs, dim=2) if len(outs) != 1 else outs[0]

    def _past(self, history: int | None) -> int:
        """Return how many of the last positions hold the values that a mixing still reads."""
        if history is None or self.places is None:
            return self.length if history is None else min(history, self.length)
        read = (self.places >= (self._counts() - history)[:, None]) & (self.places >= 0)
        columns = read.any(dim=0).nonzero()
        return self.places.shape[1] - int(columns[0]) if len(columns) else 0

    def _advance(self, length: int, new: Next) -> None:
        self.length += length
        if new.places is None:
            return
        self.places = torch.cat([self.places, new.places], dim=1)
        if self.memory.window is not None:
            self.places = self.places[:, -(length + self._remembered()) :]

    def _remembered(self) -> int:
        """Return how many earlier positions a rolling memory may hold or read again."""
        inner = getattr(self.memory, "inner", self.memory)
        coded = getattr(self.memory, "block", 0) * 2 + getattr(self.memory, "recent", 0)
        return self.store_window() + inner.spare + coded

    def store_window(self) -> int:
        """Return the latest positions that are kept for the pattern and for the mixing."""
        return max(self.memory.window, (self.spec.mixing.history or 0) + 1)

    def _where(self, held: Held, new: Next, length: int, first: bool) -> tuple[Where, bool]:
        """Return what restricts the new queries among the keys held."""
        valid = new.rows.valid
        if new.places is None:
            if held.first == 0 or (held.sinks == 0 and self.pattern.relative):
                return Where(), False
            device = held.parts[0].device
            k_at = torch.cat(
                [
                    torch.arange(held.sinks, device=device),
                    torch.arange(held.first, self.length, device=device),
                ]
            )[None]
            return Where(q_positions=new.rows.positions, k_positions=k_at), True
        places = self.places
        held_places = places[:, places.shape[1] - (self.length - held.first) :]
        real = held_places >= 0
        where = Where(
            valid=real,
            q_positions=new.rows.positions,
            k_positions=held_places.clamp(min=0),
            q_valid=valid,
        )
        return where, not (first and held.parts[0].shape[2] == length)

    def can_drop(self, positions: int) -> bool:
        """Return whether the last positions can be taken back, exactly."""
        if not 0 <= positions <= self.length:
            return False
        if self.sums is not None and positions:
            return False
        return all(store.can_drop(positions) for store in self._stores())

    def drop_last(self, positions: int) -> None:
        """Take the last positions back, as if they had never been read.

        Raises:
            ConfigError: if they cannot be; nothing has changed then.
        """
        if not self.can_drop(positions):
            kept = "sums of features" if self.sums is not None else repr(self.memory)
            raise ConfigError(
                f"drop_last({positions}) of {self.length} positions in {kept} is not possible; ask "
                "can_drop first, and keep a copy where drafts may be refused."
            )
        for store in self._stores():
            store.drop_last(positions)
        self.length -= positions
        if self.places is not None and positions:
            self.places = self.places[:, :-positions]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order; a row may come several times."""
        self.batch = len(rows)
        for store in self._stores():
            store.select(rows)
        if self.places is not None:
            self.places = self.places.index_select(0, rows)
        if self.sums is not None:
            marks = (m if m is None else m.index_select(1, rows) for m in self.sums.mark)
            sums = self.sums.sums.index_select(0, rows)
            self.sums = running.State(sums, type(self.sums.mark)(*marks))

    def reset(self) -> None:
        """Forget everything."""
        for store in self._stores():
            store.reset()
        self.length, self.batch, self.places, self.sums = 0, None, None, None


def _store(spec: AttentionSpec, memory: Memory) -> Store:
    """Return the store of keys and values; a rolling one holds what the mixing reads, too."""
    history = spec.mixing.history
    if isinstance(memory, Rolling) and history is not None and history >= memory.window:
        return Rolling(history + 1, memory.sinks, memory.spare).build()
    return memory.build()


def _history(spec: AttentionSpec, memory: Memory) -> Store:
    """Return the store of values as they were before the mixing."""
    inner = getattr(memory, "inner", memory)
    if isinstance(inner, Rolling):
        return Rolling(spec.mixing.history + 1, spare=inner.spare).build()
    return Dynamic().build()


def _refuse(spec: AttentionSpec, memory: Memory) -> None:
    if not isinstance(memory, Memory):
        raise ConfigError(
            f"memory={memory!r} is no memory; give an instance such as Dynamic() or Rolling(256)."
        )
    if not spec.pattern.causal:
        raise ConfigError(
            f"pattern={spec.pattern!r} looks ahead, so no token is final before the last one is "
            "read; stream with a causal pattern, such as Causal()."
        )
    if not spec.kernel.weighs_pairs and memory != Dynamic():
        raise ConfigError(
            f"{type(spec.kernel).__name__} keeps sums of one size, so memory={memory!r} has "
            "nothing to keep; leave it out."
        )
    if memory.window is not None and spec.mixing.mixes and spec.mixing.history is None:
        raise ConfigError(
            f"{type(spec.mixing).__name__} reads every earlier value at every position, so "
            f"{memory!r} would forget what it needs; use Dynamic(), or a banded, toeplitz or block "
            "alignment."
        )
