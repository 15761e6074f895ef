"""Attention layers as graphs hold them: dense with a mask, or sums that go from token to token.

Letters: B batch, H query heads, G key/value heads, T queries, P earlier keys, S = P + T keys,
D and E head widths, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import suffice.ops.native.recurrence  # noqa: F401 - registers the operator
from suffice.errors import ConfigError
from suffice.kernels import Recurrent
from suffice.kernels.recurrent import LEAST
from suffice.layers import Attention
from suffice.layers.inputs import Inputs, SharedKV
from suffice.layers.positions import UNMASKED
from suffice.layers.positions import positions as count_real
from suffice.layers.recurrence import RecurrentState
from suffice.memory import CachedTensors
from suffice.mixing import RowLayout
from suffice.ops import recurrence, reference
from suffice.ops.native import recurrence as native
from suffice.spec import AttentionSpec
from suffice.spec.lowering import (
    BoundedSoftmax,
    DenseSoftmax,
    FeatureSum,
    RecurrentSum,
    SharedSoftmax,
    not_dense,
)

BOTH, KEYS, VALUES, RAW = "keys_and_values", "keys", "values", "values_before_mixing"
SUMS, HISTORY, STABILIZER = "sums", "convolution_inputs", "stabilizer"
EXPORTED = (DenseSoftmax, BoundedSoftmax, SharedSoftmax, FeatureSum, RecurrentSum)
LOWEST = -1e30  # logarithm of the scale of no key: finite, so that differences are

State = tuple[Tensor, ...]


def state_shapes(spec: AttentionSpec) -> dict[str, tuple[int | str, ...]]:
    """Return the names of the tensors that a layer keeps of earlier tokens, and their shapes.

    Example:
        >>> from suffice import preset
        >>> state_shapes(preset("efficient", 8, 2, causal=True))
        {'keys_and_values': ('batch', 2, 'total', 4)}
    """
    check_exported(spec)
    if spec.shares is not None:
        return {}
    kernel, key_width, value_width = spec.kernel, spec.head_width, spec.value_width
    if isinstance(kernel, Recurrent):
        shapes = {SUMS: ("batch", spec.num_heads, key_width, value_width)}
        if kernel.convolution is not None:
            shapes[HISTORY] = ("batch", kernel.convolution - 1, kernel.taps(spec))
        return shapes
    if spec.lane == "sums":
        features = kernel.num_features(key_width)
        shapes = {SUMS: ("batch", spec.kv_heads, features, value_width + 1)}
        return shapes | ({STABILIZER: ("batch", spec.kv_heads)} if kernel.stabilised else {})
    names = (BOTH,) if len(spec.cached_widths) == 1 else (KEYS, VALUES)
    names += (RAW,) * len(spec.unmixed_widths)
    return dict.fromkeys(names, ("batch", spec.kv_heads, "total", key_width))


def check_exported(spec: AttentionSpec) -> None:
    """Raise ConfigError for a layer that no graph holds."""
    lowered: Any = spec.lower()
    if type(lowered) not in EXPORTED:
        field = not_dense(spec)
        raise ConfigError(
            f"{field}={getattr(spec, field)!r} is not exported yet; run it with `suffice generate`."
        )
    if isinstance(lowered, FeatureSum) and lowered.mixing is not None:
        raise ConfigError(
            f"mixing={lowered.mixing!r} of values that are summed by features is not exported yet; "
            "run it with `suffice generate`."
        )
    if isinstance(lowered, DenseSoftmax) and lowered.infini is not None:
        raise ConfigError(
            f"{type(spec.past).__name__} compresses the past segment by segment, which depends on "
            "lengths as no graph for any length can. Run it with `suffice generate`."
        )


class CallPositions:
    """Positions of queries and keys in one call, and values that layers share, computed once.

    queries: int [B or 1, T]; keys: int [B or 1, S], -1 = padding; valid: bool [B, T] or None
    """

    def __init__(self, queries: Tensor, keys: Tensor, valid: Tensor | None) -> None:
        self.queries, self.keys, self.valid = queries, keys, valid
        self.rows = RowLayout() if valid is None else RowLayout(valid, queries)
        self._memo: dict[Hashable, Any] = {}

    def memoize(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return `compute()`, once for each key."""
        if key not in self._memo:
            self._memo[key] = compute()
        return self._memo[key]

    def allowed(self, spec: AttentionSpec) -> Tensor:
        """Return True where a query may attend to a key: bool, broadcasts to [B, H, T, S]."""

        def compute() -> Tensor:
            q, k = self.queries[:, None, :, None], self.keys[:, None, None, :]
            allowed = spec.pattern.allowed(q, k.clamp(min=0)) & (k >= 0)
            return allowed if self.valid is None else allowed & self.valid[:, None, :, None]

        return self.memoize(spec.pattern, compute)

    def bias(self, spec: AttentionSpec) -> Tensor:
        """Return the bias of the products by position: float32, broadcasts to [B, H, T, S]."""
        q, k = self.queries[:, None, :, None], self.keys[:, None, None, :].clamp(min=0)
        return self.memoize(
            (spec.position, spec.num_heads),
            lambda: spec.position.bias(spec.num_heads, q, k).float(),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _CallInputs(Inputs):
    """Inputs whose rotation is computed once for all layers."""

    call: CallPositions

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        return self.call.memoize(key, make)


class GraphAttention(nn.Module):
    """Computes an `Attention`, [B, T, d_model], by operators of graphs; padding gives 0, unread."""

    def __init__(self, layer: Attention) -> None:
        super().__init__()
        check_exported(layer.spec)
        self.layer, self.spec = layer, layer.spec

    def forward(
        self, x: Tensor, *, valid: Tensor | None = None, shared: SharedKV | None = None
    ) -> Tensor:
        """Return the attended x of whole rows; valid [B, T], True = a real position."""
        at = torch.arange(x.shape[1], device=x.device)[None]
        keys = at
        if valid is not None:
            at = count_real(valid, None)
            keys = at.masked_fill(~valid, -1)
        positions = CallPositions(at, keys, valid)
        x, q, cached = self._encode(x, positions)
        if self.spec.lane != "pairs":
            return self._combine(self._sum(q, cached, x, positions, ())[0], x, cached)
        if self.spec.shares is not None:
            cached = shared.tensors().tensors
        else:
            cached = self.layer.mixing(cached[0], cached[-1], positions.rows)
        if shared is not None:
            shared.cached = CachedTensors(cached, 0)
        return self._combine(self._attend(q, cached[0], cached[-1], positions), x, cached)

    def past(self, own: State, present: list[State]) -> State:
        """Return what the layer reads of earlier tokens: its own, or another layer's."""
        return own if self.spec.shares is None else present[self.spec.shares]

    def step(self, x: Tensor, positions: CallPositions, past: State) -> tuple[Tensor, State]:
        """Return the attended x of new tokens, and the state with them."""
        x, q, cached = self._encode(x, positions)
        if self.spec.lane != "pairs":
            out, present = self._sum(q, cached, x, positions, past)
        elif self.spec.shares is not None:  # the past of the other layer, the new tokens with it
            out, present = self._attend(q, past[0], past[:2][-1], positions), ()
        else:
            present = self._append(cached, positions, past)
            out = self._attend(q, present[0], present[:2][-1], positions)
        return self._combine(out, x, cached), present

    def _combine(self, out: Tensor, x: Tensor, cached: State) -> Tensor:
        return self.spec.combine.output(self.layer, out, x, cached)

    def _append(self, cached: State, positions: CallPositions, past: State) -> State:
        k, v = cached[0], cached[-1]
        keys = torch.cat([past[0], k], dim=2)
        if len(past) == 1:
            return (keys,)
        raw = v
        if "mixing" in self.spec.beyond_pairs:
            raw = v.masked_fill(~positions.valid[:, None, :, None], 0.0)
            earlier = past[2] if len(past) > 2 else past[0]  # noqa: PLR2004 - values before mixing, or keys
            v = self.layer.mixing.continued(
                earlier, raw, positions.queries, positions.keys.clamp(min=0)
            )
        values = torch.cat([past[1], v], dim=2)
        return (keys, values, *(torch.cat([one, raw], dim=2) for one in past[2:]))

    def _encode(self, x: Tensor, positions: CallPositions) -> tuple[Tensor, Tensor, State]:
        if positions.valid is not None:
            x = x.masked_fill(~positions.valid[..., None], 0.0)
        rows = RowLayout(positions=positions.queries)
        inputs = _CallInputs(x=x, source=x, masks=UNMASKED, rows=rows, call=positions)
        q, cached, _ = self.layer.encode(inputs)
        return x, q, cached

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, positions: CallPositions) -> Tensor:
        """Return the heads [B, H, T, E] for q [B, H, T, D], k [B, G, S, D] and v [B, G, S, E]."""
        kernel, spec = self.spec.kernel, self.spec
        batch, heads, length, width = q.shape
        groups, keys = k.shape[1], k.shape[2]
        grouped = q.reshape(batch, groups, heads // groups * length, width)
        scores = kernel.scores(grouped, k, spec.score_scale).reshape(batch, heads, length, keys)
        if spec.position.biases:
            scores = scores + positions.bias(spec)
        allowed = positions.allowed(spec) if spec.mixing.keeps_keys else torch.tensor(True)
        weights = kernel.weights(scores, allowed, **self.layer.parts().learned)
        weights = weights.masked_fill(~allowed, 0.0)  # NaN too, where a query may see no key
        weights = weights.reshape(batch, groups, heads // groups * length, keys)
        return torch.matmul(weights, v).reshape(batch, heads, length, -1)

    def _sum(
        self, q: Tensor, cached: State, x: Tensor, positions: CallPositions, past: State
    ) -> tuple[Tensor, State]:
        """Return the heads [B, H, T, E] of sums over tokens, and the state; `past` may be empty."""
        k, v = self.spec.encoder.expand(self.layer, cached)
        if self.layer.recurrence is not None:
            before = RecurrentState(past[0], past[1] if len(past) > 1 else None) if past else None
            out, after = self.layer.recurrence(
                q, k, v, x, positions.rows, before, op=native.NATIVE_RECURRENCE
            )
            return out, tuple(part for part in after if part is not None)
        features = self.layer.features
        queries, (keys, logs) = features.queries(q), features.keys(k)
        real = torch.ones_like(k[:, :1, :, :1], dtype=torch.bool)
        if positions.valid is not None:
            real = positions.valid[:, None, :, None]
        keys, values = keys.masked_fill(~real, 0.0), torch.cat([v, torch.ones_like(v[..., :1])], -1)
        decay, state = None, ()
        if logs is not None:
            logs = logs[..., None].masked_fill(~real, LOWEST)
            keys, decay, state = _stabilised(keys, logs, past, self.spec)
        times = q.shape[1] // k.shape[1]
        if self.spec.pattern.causal:
            shape = (*keys.shape[:2], keys.shape[3], values.shape[3])
            before = past[0] if past else keys.new_zeros(shape)
            keys, values, decay, before = (
                part if part is None or times == 1 else part.repeat_interleave(times, dim=1)
                for part in (keys, values, decay, before)
            )
            data = recurrence.Sequence(queries, keys, values, decay, None, None)
            sums, after = native.scan(data, before)
            state = (after[:, ::times], *state)
        else:
            sums = queries @ (keys.mT @ values).repeat_interleave(times, dim=1)
        return reference.divided(sums, features.floor, v.shape[3])[0], state


def _stabilised(
    keys: Tensor, logs: Tensor, past: State, spec: AttentionSpec
) -> tuple[Tensor, Tensor | None, State]:
    """Return features of keys relative to the largest scale so far, its decay, and the last one.

    keys [B, G, T, F] have scales exp(logs), [B, G, T, 1]. Without a causal pattern all are relative
    to the largest one of the row. Sums that hold no key yet are all 0, whatever their stabilizer.
    """
    if not spec.pattern.causal:
        return keys * (logs - logs.amax(dim=2, keepdim=True)).exp(), None, ()
    before = torch.full_like(logs[:, :, :1], LOWEST)
    if past:
        holds_keys = (past[0][..., -1].amax(dim=2) > 0.0)[..., None, None]
        before = torch.where(holds_keys, past[1][..., None, None], before)
    at = torch.arange(logs.shape[2], device=logs.device)
    peaks = logs.mT.masked_fill(at > at[:, None], LOWEST).amax(dim=3, keepdim=True)
    peaks = peaks.maximum(before)
    decay = (torch.cat([before, peaks[:, :, :-1]], dim=2) - peaks).clamp(min=LEAST)
    return keys * (logs - peaks).exp(), decay, (peaks[:, :, -1, 0],)


# Recurrences: a traced graph holds the library's operator `native_recurrence`, which other programs
# do not have. ONNX Runtime's LinearAttention computes the same: the state decays before it is
# corrected, and is read after. Queries are scaled before, so its scale is 1.
OWN = torch.ops.suffice.native_recurrence.default
OPERATOR = "com.microsoft::LinearAttention"
RULES = {  # by whether the state decays, and whether values are corrected
    (False, False): "linear",
    (True, False): "gated",
    (False, True): "delta",
    (True, True): "gated_delta",
}


def is_recurrent(graph: torch.export.ExportedProgram) -> bool:
    """Return whether a graph holds the library's operator."""
    parts = (part for part in graph.graph_module.modules() if isinstance(part, GraphModule))
    return any(node.target is OWN for part in parts for node in part.graph.nodes)


def with_linear_attention(graph: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a graph whose recurrences are ONNX Runtime's operators."""
    if not is_recurrent(graph):
        return graph
    if not hasattr(torch.onnx, "ops"):
        raise ConfigError(
            f"torch {torch.__version__} cannot write {OPERATOR}, which this model needs; export it "
            "with torch 2.8 or newer."
        )
    return graph.run_decompositions({OWN: _linear_attention})


def _linear_attention(  # noqa: PLR0917 - arguments of the operator that it replaces
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    documents: None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return outputs and state as ONNX Runtime's operator, which runs in its graphs alone."""
    del documents  # a state continues one document of each row
    heads = q.shape[1]
    packed = [None if x is None else x.transpose(1, 2).flatten(2) for x in (q, k, v, decay, beta)]
    out, after = torch.onnx.ops.symbolic_multi_out(
        OPERATOR,
        (*packed[:3], state, *packed[3:]),
        {
            "q_num_heads": heads,
            "kv_num_heads": heads,
            "scale": 1.0,
            "update_rule": RULES[decay is not None, beta is not None],
        },
        dtypes=(torch.float32, torch.float32),
        shapes=(packed[2].shape, state.shape),
        version=1,
    )
    return out.unflatten(2, (heads, -1)).transpose(1, 2), after
