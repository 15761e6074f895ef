"""The one module that composes: an attention layer of any spec."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.layers.arguments import check_spec, check_stream, device_type
from suffice.layers.dropout import Dropout
from suffice.layers.given import PLAIN, given
from suffice.layers.next import Next
from suffice.layers.normalisation import RMSNorm
from suffice.layers.read import read
from suffice.layers.recall import Raw, recall
from suffice.layers.state import LayerState
from suffice.memory import Dynamic, Memory
from suffice.mixing import RowLayout
from suffice.ops import reference
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.dispatch import explain, plan
from suffice.ops.linear import Linear, multiplier
from suffice.ops.op import Op, Parts
from suffice.spec import AttentionSpec

EVERYTHING = Dynamic()


class Attention(nn.Module):
    """An attention layer, self- or cross-attention, of the given spec.

    Args:
        spec: the composition.
        impl: "auto", or an op by name for every call (`suffice.ops.OPS`); never replaced.
        device: where the parameters live.
        dtype: of the parameters.

    Shapes:
        x: [B, T, d_model] -> [B, T, d_model]

    Raises:
        ConfigError: for an unknown impl, or a spec that is none.

    Example:
        >>> layer = Attention(AttentionSpec(d_model=32, num_heads=4))
        >>> layer(torch.randn(2, 9, 32)).shape
        torch.Size([2, 9, 32])
    """

    def __init__(
        self,
        spec: AttentionSpec,
        *,
        impl: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.spec = check_spec(spec)
        self.impl = impl
        maps = spec.encoder.build(
            spec.widths, bias=spec.bias, linear=Linear, device=device, dtype=dtype
        )
        self.q_proj, self.k_proj = maps["q_proj"], maps["k_proj"]
        self.v_proj, self.o_proj = maps["v_proj"], maps["o_proj"]
        normed = partial(spec.norm.build, spec.head_width, rms=RMSNorm, device=device, dtype=dtype)
        self.q_norm, self.k_norm = normed(), normed()
        self.features = spec.kernel.build(
            head_dim=spec.head_width, scale=spec.score_scale, device=device
        )
        self.mixing = spec.mixing.build(
            num_kv_heads=spec.kv_heads, causal=spec.pattern.causal, device=device, dtype=dtype
        )
        self.past = spec.past.build(
            num_heads=spec.num_heads, num_kv_heads=spec.kv_heads, device=device, dtype=dtype
        )
        self.dropout = Dropout(spec.dropout)
        self.num_heads, self.num_kv_heads = spec.num_heads, spec.kv_heads
        self.head_dim = spec.head_width
        self.rotates = spec.position.rotates
        self._plan(1, 1, PLAIN, False, "cpu", self.q_proj.weight.dtype)  # an unknown impl is told

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        source_segments: Tensor | None = None,
        mask: Tensor | None = None,
        state: LayerState | None = None,
    ) -> Tensor:
        """Return the attended x.

        Args:
            x: [B, T, d_model], where the queries come from.
            memory: [B, S, d_source], where keys and values come from; None = x itself.
            valid: bool [B, S], True = a real key, False = padding, anywhere in the row. What a
                padded position contains is never read.
            segments: int [B, T]; each run of equal numbers is a document, which neither sees nor
                counts positions from the others. With memory, documents of the queries.
            source_segments: int [B, S], documents of the memory; a query sees its own number.
            mask: bool [B or 1, H or 1, T, S], True = may attend; no mixing can honour one.
            state: what `self.state` made: x goes on where the last call with it ended, and the
                state is moved on. valid [B, T] speaks of x.

        Raises:
            ShapeError: if shapes do not fit.
            MaskError: if valid or mask is not boolean.
            ConfigError: if the spec cannot honour an argument.
        """
        if state is not None:
            return self._go_on(x, state, memory, valid, segments, mask)
        x, source, where, rows = given(self.spec, x, memory, valid, segments, source_segments, mask)
        q, k, v, raw = self._read(x, source, rows)
        dropping = self.training and self.spec.dropout > 0.0
        problem, op = self._plan(x.shape[1], k.shape[2], where, dropping, q.device.type, q.dtype)
        out = op(q, k, v, where, problem, self.parts())
        out = where.zero_padded(recall(self.past, raw, out, rows))
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def state(self, memory: Memory = EVERYTHING) -> LayerState:
        """Return an empty state to stream with.

        Args:
            memory: what is kept of the past.

        Raises:
            ConfigError: if the layer cannot stream, or not with this memory.

        Example:
            >>> from suffice.patterns import Causal
            >>> layer = Attention(AttentionSpec(d_model=8, num_heads=2, pattern=Causal()))
            >>> x, state = torch.randn(1, 5, 8), layer.state()
            >>> parts = [layer(x[:, a:b], state=state) for a, b in ((0, 3), (3, 5))]
            >>> bool((torch.cat(parts, dim=1) - layer(x)).abs().max() < 1e-5)
            True
        """
        return LayerState(self.spec, memory)

    def _go_on(
        self,
        x: Tensor,
        state: LayerState,
        memory: Tensor | None,
        valid: Tensor | None,
        segments: Tensor | None,
        mask: Tensor | None,
    ) -> Tensor:
        """Return the attended x, which goes on where the state ends."""
        if not isinstance(state, LayerState):
            raise ConfigError(f"state is a {type(state).__name__}; give what layer.state() makes.")
        check_stream(self.spec, state.spec, x, memory, valid, segments, mask)
        new = state.begin(x.shape[0], x.shape[1], valid, x.device)
        if x.shape[1] == 0:
            return self.o_proj(x.new_zeros(x.shape[0], 0, self.spec.widths.q))
        if valid is not None:
            x = x.masked_fill(~valid[..., None], 0.0)
        q, k, v, raw = self._turned(x, x, new.rows.positions, new)
        if self.features is None:
            out = read(self, q, k, v, state, new)
            if self.past is not None:
                out = state.recalled.recall(self.past, raw, out, valid)
        else:
            given = (False, x.device.type, False, x.dtype)
            problem = self.problem(x.shape[1], x.shape[1], PLAIN, given)
            out = state.sum_up(self.mixing, q, k, v, new, problem, self.features)
        if valid is not None:
            out = MaskInputs(q_valid=valid).zero_padded(out)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def problem(
        self, queries: int, keys: int, where: MaskInputs, given: tuple[bool, str, bool, torch.dtype]
    ) -> AttentionCall:
        """Return the problem of a call; given: pairwise, device, dropping and dtype."""
        named = dict(zip(("pairwise", "device", "dropping", "dtype"), given, strict=True))
        return AttentionCall.of(self.spec, queries, keys, plain=where.plain, **named)

    def weights(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        source_segments: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the weights [B, H, T, S] of the kernel, computed in float64; arguments as forward.

        Rows sum to 1, or to exactly 0 for a query that may see no key. With a mixing the kernel
        reads mixed values: the effective map is these weights times W_A.
        """
        x, source, where, rows = given(self.spec, x, memory, valid, segments, source_segments, mask)
        q, k, _, _ = self._read(x, source, rows)
        problem, _ = self._plan(x.shape[1], k.shape[2], where, False, q.device.type, q.dtype)
        weights = reference.weights_of_rows(q, k, where, problem, self.parts())
        return where.zero_padded(weights).to(q.dtype)

    def explain(
        self,
        length: int,
        source_length: int | None = None,
        *,
        batch: int = 1,
        plain: bool = True,
        device: str = "cpu",
    ) -> str:
        """Return which op runs and why no other, for a call of these sizes.

        Args:
            length: positions of x.
            source_length: positions of memory; None = self-attention.
            batch: samples.
            plain: False if valid, segments or mask will be given.
            device: "cpu", "cuda" or one of torch's devices.
        """
        device = device_type(device)
        keys = length if source_length is None else source_length
        dropping = self.training and self.spec.dropout > 0.0
        dtype = self.q_proj.weight.dtype
        given = {"plain": plain, "dropping": dropping, "device": device, "dtype": dtype}
        problem = AttentionCall.of(self.spec, length, self.spec.mixing.reads(keys), **given)
        by = multiplier(self.q_proj, batch * length, device=device, learning=self.training)
        return f"{explain(problem, self.impl)}\nlinear maps: {by}"

    def extra_repr(self) -> str:
        """Show the composition in the printed module."""
        s = self.spec
        axes = (s.pattern, s.encoder, s.mixing, s.kernel, s.norm, s.position, s.past)
        sizes = f"d_model={s.d_model}, num_heads={s.num_heads}, num_kv_heads={s.kv_heads}"
        return f"{sizes}, {', '.join(map(repr, axes))}"

    def _plan(
        self,
        queries: int,
        keys: int,
        where: MaskInputs,
        dropping: bool,
        device: str,
        dtype: torch.dtype,
    ) -> tuple[AttentionCall, Op]:
        """Return the call and its op."""
        call = self.problem(queries, keys, where, (where.pairwise, device, dropping, dtype))
        return call, plan(call, self.impl)

    def parts(self) -> Parts:
        """Return what its ops need of the layer."""
        return Parts(self.dropout, self.features)

    def _read(
        self, x: Tensor, source: Tensor, rows: RowLayout
    ) -> tuple[Tensor, Tensor, Tensor, Raw]:
        """Return q [B, H, T, D], k [B, G, R, D] and v [B, G, R, E] as the kernel reads them."""
        at = rows.positions
        if at is None:
            at = torch.arange(source.shape[1], device=source.device)
        q, k, v, raw = self._turned(x, source, at)
        return q, *self.mixing(k, v, rows), raw

    def _turned(
        self, x: Tensor, source: Tensor, at: Tensor, new: Next | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Raw]:
        """Return q, k, v at positions [S] or [B, S], before any mixing, and before any turn."""
        q = self.queries(x)
        k, v = self.keys_and_values(source)
        raw = Raw(q, k, v)
        if self.rotates:
            find = partial(self.spec.position.cos_sin, at, self.head_dim, q.dtype)
            key = (self.spec.position, self.head_dim, q.dtype)
            q, k = self._turn(q, k, find() if new is None else new.once(key, find))
        return q, k, v, raw

    def _turn(self, q: Tensor, k: Tensor, turns: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return q and k turned; of one position both at once, as calls are what costs there."""
        turn, heads = self.spec.position.rotate_by, (self.num_heads, self.num_kv_heads)
        if q.shape[2] == 1 == k.shape[2]:
            return turn(torch.cat([q, k], dim=1), turns).split(heads, dim=1)
        return turn(q, turns), turn(k, turns)

    def queries(self, x: Tensor) -> Tensor:
        """Return the queries [B, H, T, D] of x [B, T, d_model], before any turn."""
        return self.q_norm(self._heads(self.q_proj(x), self.num_heads)).transpose(1, 2)

    def keys_and_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return k [B, G, S, D] and v [B, G, S, E] of [B, S, d_source], before turn and mixing."""
        read = self.spec.encoder.read(self.k_proj, self.v_proj, source)
        k, v = (self._heads(part, self.num_kv_heads) for part in read)
        return self.k_norm(k).transpose(1, 2), v.transpose(1, 2)

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        """Split [B, T, W] into [B, T, heads, D]; a view."""
        return x.view(x.shape[0], x.shape[1], heads, self.head_dim)
