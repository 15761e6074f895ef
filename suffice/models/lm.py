"""The language model, and the embedding of tokens and their positions.

Letters: B batch, T tokens, M d_model, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from suffice.errors import ConfigError, ShapeError
from suffice.layers import MLP, Block, Dropout, Experts, MixtureOfExperts, SwiGLU
from suffice.layers.basic import NORMALISATIONS, normalisation, sinusoidal, sinusoidal_at
from suffice.layers.block import ACTIVATIONS, GATES, NORMS, run_blocks
from suffice.layers.inputs import check_rows
from suffice.layers.packed import Packed
from suffice.layers.positions import positions as count_real
from suffice.memory import Dynamic, Memory
from suffice.models.config import POSITIONS, ModelConfig, check_causal, specs_of_blocks
from suffice.models.state import ModelState, check_state, layer_states
from suffice.ops.linear import Linear, linear
from suffice.spec import AttentionSpec
from suffice.utils.torch_compat import readable

EVERYTHING = Dynamic()


@dataclass(frozen=True, kw_only=True)
class LMConfig(ModelConfig):
    """The sizes of a language model.

    Args:
        vocabulary_size: token ids are below this.
        length: the longest row, tokens; without learned positions the model reads longer ones
            too, as far as its attention does.
        d_model: features.
        depth: blocks.
        mlp_width: features inside a block's MLP.
        activation: function of the MLPs: one of `MLP`, or "swiglu", "geglu" or "geglu_tanh" (see
            `SwiGLU`), which have a third map.
        norm: "layer" or "rms" (see `RMSNorm`), before the attention, the MLP and the head.
        residual: place of the norms: "pre", "both", "out" or "parallel", see `norm` of `Block`.
        eps: epsilon of the norms.
        positions: vectors added to the embedded tokens: "learned", "sinusoidal" (see `sinusoidal`)
            or "none", for attention that encodes positions itself.
        bias: bias terms in the MLPs and on layer norms; those of the attention are its
            spec's, and the head has none.
        tied: whether the head's weights are the tokens' rows.
        head_bias: whether the head has a bias, as in Phi; a tied one has none.
        dropout: probability, on the embedded tokens, after the attention and after the MLP; the
            specs set the dropout of attention weights.
        logit_cap: bound of the logits: each becomes cap * tanh(logit / cap); None disables it.
        start: standard deviation of the weights of maps and embeddings before training. The usual
            0.02 suits a width of many hundreds; at a width of 64 it leaves every score near 0, and
            training makes no progress for thousands of steps.
        experts: a mixture of experts instead of the MLPs, see `Experts`; None: MLPs. Where
            every block has one, mlp_width is their width; else that of the blocks without.

    Raises:
        ConfigError: naming the fields that are not legal, see `ModelConfig`.
    """

    vocabulary_size: int
    length: int
    d_model: int
    depth: int
    mlp_width: int
    activation: str = "gelu"
    norm: str = "layer"
    residual: str = "pre"
    eps: float = 1e-5
    positions: str = "learned"
    bias: bool = True
    tied: bool = True
    head_bias: bool = False
    dropout: float = 0.0
    logit_cap: float | None = None
    start: float = 0.02
    experts: Experts | None = None

    choices: ClassVar[dict[str, Collection[str]]] = {
        "activation": (*ACTIVATIONS, *GATES),
        "norm": NORMALISATIONS,
        "residual": tuple(norm for norm in NORMS if norm != "post"),
        "positions": POSITIONS,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        advice = "give a number above 0, or leave it out"
        self._check(("logit_cap",), lambda x: x is None or x > 0.0, advice)
        self._check(
            ("head_bias",), lambda bias: not (bias and self.tied), "give tied=False with it"
        )
        if self.experts is not None:
            self._check_experts(self.experts)

    def _check_experts(self, experts: Experts) -> None:
        legal = tuple(GATES) if experts.limit is None else ("swiglu",)
        advice = f"these experts have gates; give {' or '.join(legal)}"
        self._check(("activation",), lambda activation: activation in legal, advice)
        advice = f"it has fewer blocks than experts.dense={experts.dense} names"
        self._check(("depth",), lambda depth: max(experts.dense, default=0) < depth, advice)
        if not set(range(self.depth)) - set(experts.dense):
            raise ConfigError(f"experts.dense={experts.dense} leaves no block with experts.")
        if not experts.dense:
            advice = f"no block is dense; give the width of the experts, {experts.width}"
            self._check(("mlp_width",), lambda width: width == experts.width, advice)

    def build(
        self,
        spec: AttentionSpec | Sequence[AttentionSpec],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> LM:
        """Return a model of these sizes with the given attention; "meta" takes no memory."""
        with SkipInit():
            return LM(self, spec, device=device, dtype=dtype)


class LM(nn.Module):
    """A decoder: token and position embeddings, pre-norm blocks of any causal attention, a head.

    Weights start with a mean of 0 and the standard deviation `config.start`, those of maps that
    end a residual branch with start / sqrt(2 depth); biases are 0. Maps along the sequence start
    as their mixing says.

    Args:
        config: the sizes.
        spec: the attention of every block, or one spec for each.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Shapes:
        tokens: int [B, T] -> logits [B, T, V]

    Raises:
        ConfigError: if a spec is not causal or does not fit the sizes.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section
        2.3. Differs: whatever the config and the specs choose.

    Example:
        >>> from suffice import preset
        >>> sizes = dict(vocabulary_size=65, length=16, d_model=32, depth=2, mlp_width=64)
        >>> model = LMConfig(**sizes).build(preset("efficient", 32, 4, causal=True))
        >>> model(torch.randint(65, (3, 16))).shape
        torch.Size([3, 16, 65])
    """

    def __init__(
        self,
        config: LMConfig,
        spec: AttentionSpec | Sequence[AttentionSpec],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        specs = specs_of_blocks(spec, depth=config.depth, d_model=d_model, length=config.length)
        check_causal(specs)
        self.specs = specs
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.embedding = Embedding(
            config.vocabulary_size, config.length, d_model, positions=config.positions, **factory
        )
        self.dropout = Dropout(config.dropout)
        self.blocks: Any = nn.ModuleList(
            Block(
                block_spec,
                _mlp(config, number, **factory),
                norm=config.residual,
                eps=config.eps,
                dropout=config.dropout,
                normalisation=config.norm,
                bias=config.bias,
                **factory,
            )
            for number, block_spec in enumerate(specs)
        )
        self.norm = normalisation(config.norm, d_model, eps=config.eps, bias=config.bias, **factory)
        self.head = None
        if not config.tied:
            self.head = Linear(d_model, config.vocabulary_size, bias=config.head_bias, **factory)
        self._initialise()

    def forward(
        self,
        tokens: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        state: ModelState | None = None,
    ) -> Tensor:
        """Return logits [B, T, V]: at each token, those of the next one.

        Args:
            tokens: ids.
            valid: bool [B, T], True = a real token; padding may stand anywhere and hold any id.
                Logits at padding mean nothing.
            segments: int [B, T]; each run of equal numbers is a document, which gives what it
                gives alone.
            state: a state made by `self.state`: the tokens continue where the last call with it
                ended, and are added to it.

        Raises:
            ShapeError: if a shape does not fit, or rows are longer than the model reads.
            MaskError: if valid is not boolean.
        """
        return self.logits(self.features(tokens, valid=valid, segments=segments, state=state))

    def features(
        self,
        tokens: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        state: ModelState | None = None,
    ) -> Tensor:
        """Return the input of the head, [B, T, M]; arguments and errors as of forward."""
        check_rows("tokens", tokens, valid, segments)
        if state is not None:
            check_state(state, len(self.blocks))
        restrictions = {"valid": valid, "segments": segments}
        positions = None if state is None else state.positions(tokens, valid)
        x = self.dropout(self.embedding(tokens, positions=positions, **restrictions))
        states = None if state is None else state.layers
        return self.norm(run_blocks(self.blocks, self.specs, x, states, **restrictions))

    def state(self, memory: Memory = EVERYTHING) -> ModelState:
        """Return an empty state to stream with.

        Args:
            memory: the KV cache of each layer; layers of features keep their sums instead.

        Raises:
            ConfigError: if a layer cannot stream, or not with this memory.
        """
        return ModelState(layer_states([block.attention for block in self.blocks], memory))

    def logits(self, features: Tensor) -> Tensor:
        """Return the head's logits [..., V] of features [..., M]."""
        logits = self.embedding.logits(features) if self.head is None else self.head(features)
        return capped(logits, self.config.logit_cap)

    def step(self, tokens: Tensor, state: ModelState) -> Tensor:
        """Return the logits [B, V] after one more token [B] of each row."""
        return self.logits(self.features(tokens[:, None], state=state)[:, -1])

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.norm.weight.device

    @torch.no_grad()
    def _initialise(self) -> None:
        last = {block.attention.o_proj for block in self.blocks}
        last |= {m for name, m in self.blocks.named_modules() if name.endswith(".down")}
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                divisor = math.sqrt(2 * self.config.depth) if module in last else 1.0
                nn.init.normal_(module.weight, std=self.config.start / divisor)


def capped(logits: Tensor, cap: float | None) -> Tensor:
    """Return cap * tanh(logits / cap), or the logits as they are if cap is None."""
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _mlp(config: LMConfig, number: int, **factory: Any) -> nn.Module:
    sizes = (config.d_model, config.mlp_width)
    options = {"dropout": config.dropout, "bias": config.bias, **factory}
    if config.experts is not None and number not in config.experts.dense:
        options["activation"] = config.activation
        return MixtureOfExperts(config.d_model, config.experts, **options)
    if config.activation in GATES:
        return SwiGLU(*sizes, activation=config.activation, **options)
    return MLP(*sizes, activation=config.activation, inner_dropout=False, **options)


class Embedding(nn.Module):
    """A vector for each token id, plus one for its position: int [B, T] -> [B, T, M].

    `positions` are "learned" (for at most `length` tokens), "sinusoidal" (see `sinusoidal`) or
    "none".
    """

    def __init__(
        self,
        vocabulary_size: int,
        length: int,
        d_model: int,
        *,
        positions: str,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, d_model, device=device, dtype=dtype)
        self.positions = None
        if positions == "learned":
            self.positions = nn.Embedding(length, d_model, device=device, dtype=dtype)
        self.position_type = positions

    def forward(
        self,
        tokens: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the features [B, T, M] of tokens; positions count as in an attention layer.

        `positions` int [B or 1, T] are those of tokens that continue a text; None: counted from 0.
        """
        if tokens.dtype not in (torch.int64, torch.int32):
            raise ConfigError(f"token ids are {tokens.dtype}; give int64 or int32.")
        if valid is not None:
            tokens = tokens.masked_fill(~valid, 0)
        try:
            x = self.tokens(tokens)
        except IndexError as error:
            last = len(self.tokens.weight) - 1
            raise ConfigError(
                f"ids of tokens are outside the vocabulary; give 0 to {last:,}."
            ) from error
        return self.add_positions(x, valid=valid, segments=segments, positions=positions)

    def add_positions(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return token features [B, T, M] with their positions added; arguments as of forward."""
        if self.position_type == "none":
            return x
        if positions is not None and torch.compiler.is_compiling():
            return x + self.at(positions, x)
        counted = positions is None and (valid is not None or segments is not None)
        if counted:
            positions = count_real(valid, segments)
        length = x.shape[1]
        if positions is not None and positions.numel() and (not counted or readable(positions)):
            length = int(positions.max()) + 1  # a row of several documents may be longer
        self.check_length(length)
        table = self.table(length, x)
        return x + (table if positions is None else F.embedding(positions, table))

    def check_length(self, length: int) -> None:
        """Raise ShapeError if rows are longer than the learned positions."""
        if self.positions is not None and length > self.positions.num_embeddings:
            raise ShapeError(
                f"rows of {length} tokens in a model that learned positions for "
                f"{self.positions.num_embeddings}; cut them, or build a model of "
                f"length={length}."
            )

    def logits(self, features: Tensor) -> Tensor:
        """Return the products [..., V] of features [..., M] with every token's vector."""
        if isinstance(self.tokens, Packed):
            return self.tokens.product(features)
        return linear(features, self.tokens.weight, None)

    def at(self, positions: Tensor, x: Tensor) -> Tensor:
        """Return what is added at positions; reads no values, so that graphs can record it."""
        if self.positions is not None:
            return self.positions(positions)
        return sinusoidal_at(positions, x.shape[-1], dtype=x.dtype)

    def table(self, length: int, x: Tensor) -> Tensor:
        """Return what is added at positions 0..length - 1: [length, M], as x's dtype and device."""
        if self.positions is not None:
            return self.positions.weight[:length]
        return sinusoidal(length, x.shape[-1], device=x.device, dtype=x.dtype)


class SkipInit(TorchFunctionMode):
    """Skips random initialisation on "meta", for which torch would load its compiler: seconds."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],  # noqa: ARG002 - torch's signature
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return a tensor on "meta" instead of initialising it; call everything else."""
        kwargs = kwargs or {}
        draws = func in (Tensor.normal_, Tensor.uniform_)
        if draws or getattr(func, "__module__", "") == "torch.nn.init":
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.device.type == "meta":
                return tensor
        return func(*args, **kwargs)
