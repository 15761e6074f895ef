"""A Transformer block: attention and a feed-forward map, each with a residual and a norm.

Letters: B batch, S positions of a source, T queries, M width of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import check_known
from suffice.layers.attention import Attention
from suffice.layers.basic import Dropout, init_glorot
from suffice.layers.basic import normalisation as normaliser
from suffice.layers.inputs import Inputs, KVView, SharedKV
from suffice.layers.positions import UNMASKED, UNPADDED, positions
from suffice.layers.state import LayerState
from suffice.mixing import RowLayout
from suffice.ops.call import MaskInputs
from suffice.ops.linear import Linear
from suffice.ops.native import library as native
from suffice.ops.native import stock
from suffice.spec import AttentionSpec

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, approximate="tanh"),
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
}
GATES: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "swiglu": (F.silu, native.SWIGLU),
    "geglu": (F.gelu, native.GEGLU),
    "geglu_tanh": (partial(F.gelu, approximate="tanh"), native.GEGLU_TANH),
}
"""By name: the activation, and its number in the kernels."""


def gated(gate: Tensor, up: Tensor, name: str) -> Tensor:
    """Return act(gate) * up for a `name` of `GATES`, in one kernel on a CPU without gradients."""
    activation, number = GATES[name]
    # gradients of the kernel's gradients do not exist
    if stock.keeps_no_gradient(gate, up) and stock.suits(gate, up):
        return stock.glu(gate, up, number)
    return activation(gate) * up


NORMS = ("pre", "post", "both", "out", "parallel")
CROSS_NORMS = NORMS[:-1]  # of blocks that also attend to a source


class _ResidualBlock(nn.Module):
    attention: Attention
    attention_norm: nn.Module
    cross_norm: nn.Module

    def __init__(
        self,
        attentions: dict[str, AttentionSpec],
        mlp: nn.Module,
        norm: str,
        normalisation: str,
        dropout: float,
        norms: tuple[str, ...] = NORMS,
        **options: Any,
    ) -> None:
        super().__init__()
        check_known("norm", norm, norms)
        d_model = attentions["attention"].d_model
        factory = {name: options[name] for name in ("device", "dtype")}
        for name, spec in attentions.items():
            self._add_norms(name, norm, normalisation, d_model, options)
            self.add_module(name, Attention(spec, **factory))
        self.dropout = Dropout(dropout)
        self._add_norms("mlp", norm, normalisation, d_model, options)
        self.mlp = mlp
        self.norm = norm

    def _add_norms(
        self, name: str, norm: str, kind: str, d_model: int, options: dict[str, Any]
    ) -> None:
        for part, exists in (("norm", norm != "out"), ("out_norm", norm in ("both", "out"))):
            made = normaliser(kind, d_model, **options) if exists else nn.Identity()
            self.add_module(f"{name}_{part}", made)

    def _add(
        self, x: Tensor, name: str, branch: Callable[[Tensor], Tensor], read: Tensor
    ) -> Tensor:
        """Add what a branch makes of `read`, which is x but in a parallel block."""
        norm, out_norm = getattr(self, f"{name}_norm"), getattr(self, f"{name}_out_norm")
        if self.norm == "post":
            return norm(x + branch(x))
        return x + out_norm(branch(norm(read)))


class Block(_ResidualBlock):
    """Self-attention of any spec, then an MLP.

    Args:
        spec: the attention.
        mlp: the feed-forward map, d_model in and out.
        norm: "pre": x + f(norm(x)), as ViT and GPT; "post": norm(x + f(x)), as the first
            Transformer and the paper's text models; "both": x + norm(f(norm(x)));
            "out": x + norm(f(x)), as OLMo 2; "parallel": x + attention(norm(x)) + mlp(norm(x)),
            each with its norm, as GPT-NeoX, Phi and Cohere.
        eps: epsilon of the norms.
        dropout: probability, after the attention.
        normalisation: "layer" or "rms", see `RMSNorm`.
        bias: whether layer norms have one; an RMS norm never has.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Shapes:
        x: [B, T, d_model] -> [B, T, d_model]

    Raises:
        ConfigError: for an unknown norm or normalisation.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        mlp: nn.Module,
        *,
        norm: str = "pre",
        eps: float = 1e-6,
        dropout: float = 0.0,
        normalisation: str = "layer",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = {"eps": eps, "bias": bias, "device": device, "dtype": dtype}
        super().__init__({"attention": spec}, mlp, norm, normalisation, dropout, **options)

    def forward(self, x: Tensor, **where: Tensor | None) -> Tensor:
        """Return the block's output.

        Args:
            x: features.
            **where: arguments of `Attention.forward`: `valid` [B, T] marks real tokens, `segments`
                [B, T] numbers documents. Padded tokens are never read.
        """
        return self.run(x, lambda x: self.attention(x, **where))

    def run(self, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the block's output with `attend` in the place of the attention."""
        attended = self._add(x, "attention", lambda x: self.dropout(attend(x)), x)
        return self._add(attended, "mlp", self.mlp, x if self.norm == "parallel" else attended)


def shared_kv(specs: Sequence[AttentionSpec]) -> list[SharedKV | None]:
    """Return for each layer where it writes or reads shared keys and values; None: neither."""
    places = {spec.shares: SharedKV() for spec in specs if spec.shares is not None}
    return [
        places.get(number if spec.shares is None else spec.shares)
        for number, spec in enumerate(specs)
    ]


def run_blocks(
    blocks: Sequence[Block],
    specs: Sequence[AttentionSpec],
    x: Tensor,
    states: Sequence[LayerState] | None = None,
    **where: Any,
) -> Tensor:
    """Return the output [B, T, d_model] of blocks in a row; `where` goes to `Block.forward`."""
    for number, (block, shared) in enumerate(zip(blocks, shared_kv(specs), strict=True)):
        call = {**where}
        if states is not None:
            call["state"] = states[number]
        if shared is not None:
            call["shared"] = shared
        x = block(x, **call)
    return x


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedSource:
    """Keys and values of a source as one layer reads them: views of it where nothing is learned."""

    view: KVView

    @classmethod
    def of(cls, layer: Attention, source: Tensor, valid: Tensor | None) -> EncodedSource:
        """Encode a source [B, S, M], 0 at padding; valid is bool [B, S] or None."""
        rows, masks = UNPADDED, UNMASKED
        if valid is not None:
            rows = RowLayout(valid=valid, positions=positions(valid, None))
            masks = MaskInputs(valid=valid) if layer.spec.mixing.keeps_keys else UNMASKED
        inputs = Inputs(x=source, source=source, masks=masks, rows=rows)
        return cls(view=inputs.view(layer, layer.spec.encoder.cached(layer, source)))

    def attend(self, layer: Attention, x: Tensor) -> Tensor:
        """Return the output of `layer(x, source, valid=valid)`: [B, T, d_model]."""
        out = layer.attend(layer.queries(x), self.view)
        return layer.spec.combine.output(layer, out, x, ())


class EncodedSources:
    """The encoded sources of a decoder's layers; layers that read one tensor share it."""

    def __init__(self, layers: Sequence[EncodedSource]) -> None:
        self.layers = list(layers)

    @property
    def batch(self) -> int:
        return len(self.layers[0].view.cached[0])

    @property
    def nbytes(self) -> int:
        return sum({_view_key(x): x.nbytes for x in self._tensors()}.values())

    def _tensors(self) -> list[Tensor]:
        tensors = [
            x for source in self.layers for x in (*source.view.cached, source.view.masks.valid)
        ]
        return [x for x in tensors if x is not None]

    def select(self, rows: Tensor) -> None:
        tensors = {_view_key(x): x for x in self._tensors()}
        moved = {place: x.index_select(0, rows) for place, x in tensors.items()}

        def move(source: EncodedSource) -> EncodedSource:
            valid = source.view.masks.valid
            masks = UNMASKED if valid is None else MaskInputs(valid=moved[_view_key(valid)])
            cached = tuple(moved[_view_key(x)] for x in source.view.cached)
            return replace(source, view=source.view._replace(cached=cached, masks=masks))

        self.layers = [move(source) for source in self.layers]


def _view_key(x: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return x.data_ptr(), x.shape, x.stride()


class CrossBlock(_ResidualBlock):
    """Self-attention, attention to a source, then an MLP; each with a residual and a norm.

    Args:
        spec: the self-attention.
        cross_spec: the attention to the source.
        mlp: the feed-forward map, d_model in and out.
        norm: see `Block`; a block with a source has no "parallel".
        eps: epsilon of the norms.
        dropout: probability, after each attention.
        normalisation: "layer" or "rms", see `RMSNorm`.
        bias: whether layer norms have one; an RMS norm never has.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Shapes:
        x: [B, T, d_model]; source: [B, S, d_source] -> [B, T, d_model]

    Raises:
        ConfigError: for an unknown norm or normalisation.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
    """

    cross: Attention

    def __init__(
        self,
        spec: AttentionSpec,
        cross_spec: AttentionSpec,
        mlp: nn.Module,
        *,
        norm: str = "post",
        eps: float = 1e-6,
        dropout: float = 0.0,
        normalisation: str = "layer",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = {"eps": eps, "bias": bias, "device": device, "dtype": dtype}
        attentions = {"attention": spec, "cross": cross_spec}
        super().__init__(attentions, mlp, norm, normalisation, dropout, CROSS_NORMS, **options)

    def forward(
        self,
        x: Tensor,
        source: Tensor | EncodedSource,
        *,
        source_valid: Tensor | None = None,
        **where: Any,
    ) -> Tensor:
        """Return the block's output.

        Args:
            x: features of the decoder.
            source: features of the encoder, or what `EncodedSource.of` made of them for this block.
            source_valid: bool [B, S], True = a real position of the source; others are not read. A
                `EncodedSource` knows it.
            **where: arguments of the self-attention's forward, such as `valid` [B, T].
        """

        def attend_to_source(x: Tensor) -> Tensor:
            if isinstance(source, EncodedSource):
                return self.dropout(source.attend(self.cross, x))
            return self.dropout(self.cross(x, source, valid=source_valid))

        x = self._add(x, "attention", lambda x: self.dropout(self.attention(x, **where)), x)
        x = self._add(x, "cross", attend_to_source, x)
        return self._add(x, "mlp", self.mlp, x)


class MLP(nn.Module):
    """Two linear maps with an activation between, Glorot-uniform, biases zero.

    Args:
        d_model: features in and out.
        width: features between.
        activation: "gelu", "gelu_tanh" (an approximation, GPT-2's), "relu" or "tanh".
        dropout: probability, after the activation and after the second map.
        inner_dropout: False to drop after the second map only.
        bias: bias terms in the projections.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Shapes:
        x: [..., d_model] -> [..., d_model]

    Raises:
        ConfigError: for an unknown activation.
    """

    def __init__(
        self,
        d_model: int,
        width: int,
        *,
        activation: str = "gelu",
        dropout: float = 0.0,
        inner_dropout: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_known("activation", activation, ACTIVATIONS)
        self.up = Linear(d_model, width, bias=bias, device=device, dtype=dtype)
        self.activation = ACTIVATIONS[activation]()
        self.down = Linear(width, d_model, bias=bias, device=device, dtype=dtype)
        self.inner_dropout = Dropout(dropout if inner_dropout else 0.0)
        self.dropout = Dropout(dropout)
        init_glorot(self.up, self.down)

    def forward(self, x: Tensor) -> Tensor:
        """Return the map of each position."""
        return self.dropout(self.down(self.inner_dropout(self.activation(self.up(x)))))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), three linear maps, Glorot-uniform, biases zero.

    Args:
        d_model: features in and out.
        width: features between.
        activation: function of the gate: "swiglu" (silu), "geglu" (GELU) or "geglu_tanh" (GPT-2's
            approximation of it, used by Gemma).
        dropout: probability, after the last map.
        bias: bias terms in the projections.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Shapes:
        x: [..., d_model] -> [..., d_model]

    Raises:
        ConfigError: if dropout is not a probability below 1, or for an unknown activation.

    Example:
        >>> sum(p.numel() for p in SwiGLU(8, 16, bias=False).parameters())
        384

    Source: Shazeer 2020, arXiv:2002.05202, equation 6. Differs: biases, if asked for.
    """

    def __init__(
        self,
        d_model: int,
        width: int,
        *,
        activation: str = "swiglu",
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_known("activation", activation, GATES)
        self.activation = activation
        self.gate = Linear(d_model, width, bias=bias, device=device, dtype=dtype)
        self.up = Linear(d_model, width, bias=bias, device=device, dtype=dtype)
        self.down = Linear(width, d_model, bias=bias, device=device, dtype=dtype)
        self.dropout = Dropout(dropout)
        init_glorot(self.gate, self.up, self.down)

    def forward(self, x: Tensor) -> Tensor:
        """Return the map of each position."""
        return self.dropout(self.down(gated(self.gate(x), self.up(x), self.activation)))
