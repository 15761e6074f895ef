"""The attention layer of any spec, for whole sequences and streams.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D key width, E value width,
M model width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from suffice.encoders import Factory
from suffice.errors import ConfigError
from suffice.kernels import Recurrent
from suffice.layers.basic import Dropout, RMSNorm
from suffice.layers.inputs import Inputs, KVView, SharedKV, check_step, place
from suffice.layers.recurrence import Recurrence, RecurrentState
from suffice.layers.state import LayerState, Step
from suffice.memory import Dynamic, Memory
from suffice.mixing import RowLayout
from suffice.ops import reference
from suffice.ops.call import AttentionCall
from suffice.ops.dispatch import explain, plan
from suffice.ops.linear import Linear, multiplier
from suffice.ops.native.attention import NATIVE
from suffice.ops.native.decode import DECODE
from suffice.ops.op import Op, Parts, is_traced, is_transformed
from suffice.presets import preset
from suffice.spec import AttentionSpec
from suffice.utils.torch_compat import refuse_fork

EVERYTHING = Dynamic()


class Encoded(NamedTuple):
    """Queries [B, H, T, D], and keys and values for a KV cache, of a call's inputs."""

    q: Tensor
    cached: tuple[Tensor, ...]  # keys, then values: [B, heads, S, width] each
    unrotated: tuple[Tensor, ...]  # q, k and v before rotation, for a past read by content


class Attention(nn.Module):
    """An attention layer, self- or cross-attention, of the given spec.

    Args:
        spec: the composition, or the name of a preset.
        d_model: features, with a name.
        num_heads: query heads, with a name.
        impl: "auto", or an op by name for every call (`suffice.ops.OPS`); never replaced.
        device: device of the parameters.
        dtype: type of the parameters.
        **options: options of the preset, such as causal=True, see `suffice.preset`.

    Shapes:
        x: [B, T, d_model] -> [B, T, d_model]

    Raises:
        ConfigError: for an unknown impl, name or option; sizes that a name lacks or that stand
            beside a spec; or a spec that is none.

    Example:
        >>> layer = Attention("gqa", d_model=32, num_heads=4, causal=True)
        >>> layer(torch.randn(2, 9, 32)).shape
        torch.Size([2, 9, 32])
    """

    if TYPE_CHECKING:  # the encoder and the combination add modules, by names of their own

        def __getattr__(self, name: str) -> Any: ...

    @overload
    def __init__(
        self,
        spec: AttentionSpec,
        *,
        impl: str = ...,
        device: torch.device | str | None = ...,
        dtype: torch.dtype | None = ...,
    ) -> None: ...

    @overload
    def __init__(self, spec: str, d_model: int, num_heads: int, **options: Any) -> None: ...

    def __init__(
        self,
        spec: AttentionSpec | str,
        d_model: int | None = None,
        num_heads: int | None = None,
        *,
        impl: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        sizes = {"d_model": d_model, "num_heads": num_heads}
        if isinstance(spec, str):
            if None in sizes.values():
                raise ConfigError(f"Attention({spec!r:.60}): give d_model and num_heads, too.")
            spec = preset(spec, **sizes, **options)
        elif given := [*(name for name, size in sizes.items() if size is not None), *options]:
            raise ConfigError(
                f"{', '.join(given)} with a spec, which has its own; leave them out, or give the "
                "name of a preset."
            )
        if not isinstance(spec, AttentionSpec):
            raise ConfigError(
                f"spec={spec!r:.60} is a {type(spec).__name__}; give the name of a preset "
                "and its sizes, Attention('standard', 64, 4), or an AttentionSpec."
            )
        self.spec, self.impl = spec, impl
        stored = dtype or torch.get_default_dtype()
        factory = Factory(linear=Linear, rms=RMSNorm, device=device, dtype=dtype)
        modules = spec.encoder.build(spec, factory) | spec.combine.build(spec, factory)
        for name, module in modules.items():
            self.add_module(name, module)
        self.features = spec.kernel.build(
            head_dim=spec.head_width, scale=spec.score_scale, device=device
        )
        self.recurrence = None
        if isinstance(spec.kernel, Recurrent):
            self.recurrence = Recurrence(spec, spec.kernel, factory)
        self.mixing = spec.mixing.build(
            num_kv_heads=spec.kv_heads, causal=spec.pattern.causal, device=device, dtype=dtype
        )
        self.past = spec.past.build(
            num_heads=spec.num_heads, num_kv_heads=spec.kv_heads, device=device, dtype=dtype
        )
        self.dropout = Dropout(spec.dropout)
        learned = spec.kernel.learned(spec.query_heads, spec.head_width)
        self.learned = tuple(learned)  # names of the parameters that the kernel reads
        for name, initial in learned.items():
            if hasattr(self, name):
                raise ConfigError(
                    f"{spec.kernel!r} learns {name!r}, but a layer has another {name}; rename it."
                )
            initial = initial.to(device, stored, copy=True)
            self.register_parameter(name, nn.Parameter(initial))
        self.query_heads, self.key_heads = spec.query_heads, spec.key_heads
        self.value_heads, self.one_tensor = spec.kv_heads, spec.one_tensor
        plan(AttentionCall.of(spec, 1, 1, dtype=stored), impl)  # refuses what can never run

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        source_segments: Tensor | None = None,
        mask: Tensor | None = None,
        state: LayerState | None = None,
        shared: SharedKV | None = None,
    ) -> Tensor:
        """Return the output of the attention, [B, T, d_model].

        Args:
            x: [B, T, d_model], where the queries come from.
            source: [B, S, d_source], where keys and values come from; None: x itself.
            valid: bool [B, S], True = a real key, False = padding, anywhere in the row. Padded
                positions are never read.
            segments: int [B, T]; each run of equal numbers is a document, which neither sees nor
                counts positions from the others. With a source, documents of the queries.
            source_segments: int [B, S], documents of the source; a query sees its own number.
            mask: bool [B or 1, H or 1, T, S], True = may attend; no mixing can honour one.
            state: a state made by `self.state`: x continues where the last call with it ended, and
                the state is moved on. valid [B, T] speaks of x.
            shared: filled with this layer's keys and values; where the spec `shares` those of an
                earlier layer, what that one filled in the same call, on the same rows.

        Raises:
            ShapeError: if shapes do not fit.
            MaskError: if valid or mask is not boolean.
            ConfigError: if the spec cannot honour an argument.
        """
        refuse_fork()
        self._check_shared(shared)
        if state is None:
            inputs = place(self.spec, x, source, valid, segments, source_segments, mask)
        else:
            refused = {"source": source, "segments": segments, "mask": mask}
            refused["source_segments"] = source_segments
            inputs = self._step(x, state, valid, **refused)
        encoded = self.encode(inputs)
        out = inputs.read(self, encoded.q, encoded.cached, shared)
        if self.past is not None:
            out = inputs.recall(self.past, encoded.unrotated, out)
        out = inputs.masks.zero_padded(out)
        return self.spec.combine.output(self, out, inputs.x, encoded.cached)

    def _check_shared(self, shared: SharedKV | None) -> None:
        if self.spec.shares is not None and shared is None:
            raise ConfigError(
                f"this layer reads keys and values of layer {self.spec.shares} of its model and "
                "makes none; call the model, or give shared=, which that layer was called with."
            )

    def state(self, memory: Memory = EVERYTHING) -> LayerState:
        """Return an empty state to stream with.

        Args:
            memory: KV-cache policy; the default keeps every position.

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

    def inputs(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        source_segments: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Inputs:
        """Return the checked inputs of a call on whole sequences; arguments as of `forward`."""
        return place(self.spec, x, source, valid, segments, source_segments, mask)

    def _step(
        self, x: Tensor, state: LayerState, valid: Tensor | None, **refused: Tensor | None
    ) -> Step:
        if not isinstance(state, LayerState):
            raise ConfigError(f"state is a {type(state).__name__}; give what layer.state() makes.")
        if state.spec is not self.spec and state.spec != self.spec:
            raise ConfigError("the state was made by a layer of another spec; use layer.state().")
        check_step(self.spec, x, valid, **refused)
        return state.step(x, valid)

    def encode(self, inputs: Inputs) -> Encoded:
        """Return the queries, and the keys and values of the source that the layer makes."""
        encoder, position = self.spec.encoder, self.spec.position
        q, cached = encoder.queries(self, inputs.x), ()
        if self.spec.shares is None:
            cached = encoder.cached(self, inputs.source)
            if inputs.rows.valid is not None:
                cached = encoder.at_padding(cached, inputs.rows.valid)
        unrotated = (q, *cached[:1], *cached[-1:])
        if position.rotates:
            width, places = encoder.rotary_width(self.spec), inputs.positions
            if position.max_length is not None:
                if inputs.rows.positions is None:  # the length is known, in a graph too
                    position.check_length(places.shape[1])
                if inputs.rows.valid is not None:  # padding behind a text counts to its length
                    places = places.masked_fill(~inputs.rows.valid, 0)
            find = partial(position.cos_sin, places, width, q.dtype)
            cos_sin = inputs.once((position, width, q.dtype), find)
            if cached:
                q, cached = encoder.rotate(self, position, q, cached, cos_sin)
            else:
                q = position.rotate_by(q, cos_sin)
        return Encoded(q, cached, unrotated)

    def attend(self, q: Tensor, view: KVView) -> Tensor:
        """Return the attention of queries [B, H, T, D] to keys and values: [B, H, T, E]."""
        runs = self.spec.encoder.runs(q.shape[2], view.cached)
        if len(runs) == 1:
            return self._attend(q, view)
        outs, end = [], view.cached[0].shape[2] - q.shape[2]
        for part in q.split(runs, dim=2):
            end += part.shape[2]
            near = view.cut(part.shape[2], end)
            if torch.is_grad_enabled():  # or the keys of every run would be kept
                outs.append(checkpoint(self._attend, part, near, use_reentrant=False))
            else:
                outs.append(self._attend(part, near))
        return torch.cat(outs, dim=2)

    def _attend(self, q: Tensor, view: KVView) -> Tensor:
        encoder = self.spec.encoder
        continues = view.step is not None and view.step.start > 0
        absorbed = encoder.absorb(self, q, view.cached) if continues else None
        q, k, v = absorbed or encoder.products(self, q, view.cached)
        if v.shape[1] != k.shape[1]:  # several maps of a head read the same values
            v = v.repeat_interleave(k.shape[1] // v.shape[1], dim=1)
        call, op = self._planned(q, k, v, view)
        out = op(q, k, v, view.masks, call, self.parts())
        return out if absorbed is None else encoder.restore(self, out)

    def recur(
        self,
        q: Tensor,
        cached: tuple[Tensor, ...],
        x: Tensor,
        rows: RowLayout,
        before: RecurrentState | None = None,
    ) -> tuple[Tensor, RecurrentState]:
        """Return the outputs [B, H, T, E] of a recurrence, and the state after them."""
        k, v = self.spec.encoder.expand(self, cached)
        call = AttentionCall.of(
            self.spec, q.shape[2], k.shape[2], device=q.device.type, dtype=q.dtype
        )
        return self.recurrence(q, k, v, x, rows, before, op=plan(call, self.impl))

    def _planned(self, q: Tensor, k: Tensor, v: Tensor, view: KVView) -> tuple[AttentionCall, Op]:
        """Return the description of an attention product and its op."""

        def planned() -> tuple[AttentionCall, Op]:
            call = self.call(q, k, v, view)
            return call, plan(call, self.impl)  # the third cache: of the process, by call

        if view.step is None:
            return planned()
        key = view.kind, self.impl, view.masks.plain, view.pairwise, q.dtype, k.shape[1], v.shape[3]
        if q.shape[2] != 1 or not q.is_cpu or torch.is_grad_enabled() or is_transformed():
            # of a step: shared by layers of one kind, and gone with the step's positions
            return view.step.once(key, planned, q.shape[2], k.shape[2])
        # of the state: the kernel for few queries suits a token at any number of keys
        if key in view.plans:
            return view.plans[key].grown(k.shape[2]), DECODE
        call, op = planned()
        if op is DECODE:
            view.plans[key] = call
        return call, op

    def reads_apart(self, length: int, dtype: torch.dtype) -> bool:
        """Return whether documents in a row of this length are computed one by one on a CPU."""
        spec = self.spec
        if not spec.keeps_documents or spec.max_length is not None or spec.lane != "pairs":
            return False
        dropping = self.training and spec.dropout > 0.0
        options = {"plain": False, "documents": True, "dropping": dropping, "dtype": dtype}
        call = AttentionCall.of(spec, length, length, **options)
        return self.impl in ("auto", NATIVE.name) and plan(call) is NATIVE

    def call(self, q: Tensor, k: Tensor, v: Tensor, view: KVView) -> AttentionCall:
        """Return the description of an attention product."""
        whole = view.step is None
        padding = whole and view.masks.only_pads(view.pattern)
        call = AttentionCall.of(
            self.spec,
            q.shape[2],
            k.shape[2],
            plain=view.masks.plain,
            pairwise=view.pairwise,
            padding=padding,
            documents=whole and not padding and view.masks.documents and not is_traced(),
            dropping=whole and self.training and self.spec.dropout > 0.0,
            device=q.device.type,
            dtype=q.dtype,
        )
        sizes = {"num_kv_heads": k.shape[1], "head_dim": k.shape[3], "value_dim": v.shape[3]}
        changed: dict[str, Any] = {n: size for n, size in sizes.items() if getattr(call, n) != size}
        if view.pattern is not self.spec.pattern:
            changed["pattern"] = view.pattern
        return replace(call, **changed) if changed else call

    def weights(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        shared: SharedKV | None = None,
        **restrictions: Any,
    ) -> Tensor:
        """Return the weights [B, H, T, S] of the kernel, computed in float64; arguments as forward.

        Rows of a softmax sum to 1; those of a query that may see no key are 0. With a mixing the
        kernel reads mixed values: the effective map is these weights times W_A. A combination with
        N maps of each head has N H heads here: of each key/value head the first maps, then the
        others.
        """
        self._check_shared(shared)
        inputs = self.inputs(x, source, **restrictions)
        q, cached, _ = self.encode(inputs)
        if self.recurrence is not None:
            k, v = self.spec.encoder.expand(self, cached)
            found = self.recurrence.weights(q, k, v, inputs.x, inputs.rows)
            return inputs.masks.zero_padded(found).to(q.dtype)
        view = inputs.view(self, cached, shared)
        q, k, v = self.spec.encoder.products(self, q, view.cached)
        call = replace(self.call(q, k, v, view), dropping=False)
        weights = reference.weights_of_rows(q, k, view.masks, call, self.parts())
        return view.masks.zero_padded(weights).to(q.dtype)

    def explain(
        self,
        length: int,
        source_length: int | None = None,
        *,
        batch: int = 1,
        plain: bool = True,
        device: str = "cpu",
    ) -> str:
        """Return which op runs, and why no other does, for a call of these sizes.

        Args:
            length: positions of x.
            source_length: positions of the source; None: self-attention.
            batch: samples.
            plain: False if valid, segments or mask will be given.
            device: "cpu", "cuda" or another device of torch.
        """
        device = _device_type(device)
        keys = self.spec.mixing.reads(length if source_length is None else source_length)
        call = AttentionCall.of(
            self.spec,
            length,
            keys,
            plain=plain,
            dropping=self.training and self.spec.dropout > 0.0,
            device=device,
            dtype=self.o_proj.weight.dtype,
        )
        by = multiplier(self.o_proj, batch * length, device=device, learning=self.training)
        return f"{explain(call, self.impl)}\nlinear maps: {by}"

    def extra_repr(self) -> str:
        """Show the composition in the printed module."""
        s = self.spec
        axes = (s.pattern, s.encoder, s.mixing, s.kernel, s.norm, s.position, s.past, s.combine)
        sizes = f"d_model={s.d_model}, num_heads={s.num_heads}, num_kv_heads={s.kv_heads}"
        shares = "" if s.shares is None else f", shares={s.shares}"
        return f"{sizes}, {', '.join(map(repr, axes))}{shares}"

    def parts(self) -> Parts:
        """Return the modules that ops call."""
        learned = {name: getattr(self, name) for name in self.learned}
        return Parts(self.dropout, self.features, learned)

    def queries(self, x: Tensor) -> Tensor:
        """Return the queries [B, H, T, D] of x [B, T, d_model], before any rotation."""
        return self.spec.encoder.queries(self, x)

    def keys_and_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return k [B, G, S, D] and v [B, G, S, E] of a source, before rotation and mixing."""
        return self.spec.encoder.expand(self, self.spec.encoder.cached(self, source))


def _device_type(device: str | torch.device) -> str:
    try:
        return torch.device(device).type
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device={device!r} is not a device; give 'cpu' or 'cuda'.") from error


def lora_targets(model: nn.Module) -> list[str]:
    """Return the names of the attention's learned maps, for `peft.LoraConfig(target_modules=...)`.

    Optimised attention has no v_proj to adapt, Efficient neither k_proj nor v_proj.
    """
    return [
        f"{name}.{child}"
        for name, layer in model.named_modules()
        if isinstance(layer, Attention)
        for child, module in layer.named_children()
        if isinstance(module, nn.Linear)
    ]
