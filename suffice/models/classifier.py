"""The text classifier.

Letters: B batch, T tokens, M d_model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, ShapeError
from suffice.layers import MLP, Block, Dropout
from suffice.layers.basic import init_glorot
from suffice.layers.block import ACTIVATIONS, NORMS, run_blocks
from suffice.layers.inputs import check_rows
from suffice.layers.positions import positions as count_real
from suffice.layers.sinusoidal import sinusoidal
from suffice.models.config import POSITIONS, ModelConfig, specs_of_blocks
from suffice.ops.linear import Linear
from suffice.spec import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(ModelConfig):
    """The sizes of a text classifier.

    Args:
        vocabulary_size: token ids are below this.
        length: the longest text, tokens; without learned positions the model reads longer ones
            too, as far as its attention does.
        num_classes: outputs; None: no head, the pooled features themselves, a text embedding.
        d_model: features.
        depth: blocks.
        mlp_width: features inside a block's MLP.
        head_widths: hidden layers of the head, ReLU.
        dropout: probability, after the attention, after the MLP, before and inside the head.
        norm: "pre" or "post", see `Block`.
        eps: epsilon of the layer norms.
        activation: function of the blocks' MLPs.
        reads_padding: True to attend to and average padding like any token, as the Keras example
            and the paper do; False to leave it out.
        positions: vectors added to the embedded tokens: "learned", "sinusoidal" (see `sinusoidal`)
            or "none", for attention that encodes positions itself.
        embedding_norm: a layer norm of the embedded tokens, as BERT has.
        pooling: the vector of a text: the "mean" of all tokens, or the "first" token as in BERT.
        head_activation: function of the head's hidden layers.

    Raises:
        ConfigError: naming the fields that are not legal, see `ModelConfig`.
    """

    vocabulary_size: int
    length: int
    num_classes: int | None
    d_model: int
    depth: int
    mlp_width: int
    head_widths: tuple[int, ...] = ()
    dropout: float = 0.0
    norm: str = "post"
    eps: float = 1e-6
    activation: str = "relu"
    reads_padding: bool = False
    positions: str = "learned"
    embedding_norm: bool = False
    pooling: str = "mean"
    head_activation: str = "relu"

    choices: ClassVar[dict[str, Iterable[str]]] = {
        "norm": NORMS,
        "activation": ACTIVATIONS,
        "positions": POSITIONS,
        "pooling": ("mean", "first"),
        "head_activation": ACTIVATIONS,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes is not None and self.num_classes < 1:
            raise ConfigError(f"num_classes={self.num_classes}: give at least 1, or None.")

    @property
    def outputs(self) -> int:
        """Numbers per text: one for each class, or the features."""
        return self.d_model if self.num_classes is None else self.num_classes

    def build(self, spec: AttentionSpec | Sequence[AttentionSpec]) -> Classifier:
        """Return a model of these sizes with the given attention."""
        return Classifier(self, spec)


class Classifier(nn.Module):
    """Token and position embeddings, blocks of any attention, pooling over tokens and a head.

    Args:
        config: the sizes.
        spec: the attention of every block, or one spec for each.

    Shapes:
        tokens: int [B, T] -> logits [B, num_classes], or features [B, d_model] without a head
    """

    def __init__(
        self, config: ClassifierConfig, spec: AttentionSpec | Sequence[AttentionSpec]
    ) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        self.specs = specs = specs_of_blocks(
            spec, depth=config.depth, d_model=d_model, length=config.length
        )
        self.tokens = nn.Embedding(config.vocabulary_size, d_model)
        learned = config.positions == "learned"
        self.positions = nn.Embedding(config.length, d_model) if learned else None
        self.embedding_norm = nn.LayerNorm(d_model, config.eps) if config.embedding_norm else None
        for table in filter(None, (self.tokens, self.positions)):
            nn.init.uniform_(table.weight, -0.05, 0.05)
        mlp = {"activation": config.activation, "dropout": config.dropout, "inner_dropout": False}
        options = {"norm": config.norm, "eps": config.eps, "dropout": config.dropout}
        self.blocks: Any = nn.ModuleList(
            Block(block_spec, MLP(d_model, config.mlp_width, **mlp), **options)
            for block_spec in specs
        )
        self.dropout = Dropout(config.dropout)
        self.head: nn.Module = nn.Identity()
        if config.num_classes is not None:
            widths, activation = config.head_widths, config.head_activation
            self.head = head(d_model, widths, config.num_classes, activation, config.dropout)

    def forward(self, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return logits [B, num_classes] of tokens [B, T].

        Args:
            tokens: ids.
            valid: bool [B, T], True = a real token. Positions count real tokens, so a padded text
                gives what it gives alone. Ignored if config.reads_padding.

        Raises:
            ShapeError: if valid has another shape, or texts are longer than the model reads.
            MaskError: if valid is not boolean.
        """
        config = self.config
        check_rows("tokens", tokens, valid)
        if self.positions is not None and tokens.shape[1] > config.length:
            raise ShapeError(
                f"texts of {tokens.shape[1]} tokens in a model of length={config.length}; "
                "cut the texts or build a longer model."
            )
        if config.reads_padding:
            valid = None
        if valid is not None:
            tokens = tokens.masked_fill(~valid, 0)
        x = self._add_positions(self.tokens(tokens), valid)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = run_blocks(self.blocks, self.specs, x, valid=valid)
        pooled = x[:, 0] if config.pooling == "first" else mean_of_real(x, valid)
        return self.head(self.dropout(pooled))

    def _add_positions(self, x: Tensor, valid: Tensor | None) -> Tensor:
        if self.config.positions == "none":
            return x
        positions = torch.arange(x.shape[1], device=x.device)
        if valid is not None:
            positions = count_real(valid, None)
        if self.positions is not None:
            return x + self.positions(positions)
        return x + sinusoidal(x.shape[1], x.shape[2], device=x.device, dtype=x.dtype)[positions]


def head(
    features: int, widths: tuple[int, ...], num_classes: int, activation: str, dropout: float
) -> nn.Sequential:
    """Return hidden layers of these widths with activation and dropout, then the map to logits."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [glorot(features, width), ACTIVATIONS[activation](), Dropout(dropout)]
        features = width
    return nn.Sequential(*layers, glorot(features, num_classes))


def glorot(inputs: int, outputs: int, **factory: Any) -> Linear:
    """Return a linear map with Glorot-uniform weights and a bias of 0."""
    linear = Linear(inputs, outputs, **factory)
    init_glorot(linear)
    return linear


def mean_of_real(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return the mean [B, M] over real tokens of x [B, T, M]; 0 for rows without any."""
    if valid is None:
        return x.mean(dim=1)
    count = valid.sum(dim=1, keepdim=True).clamp(min=1)
    return x.masked_fill(~valid[..., None], 0.0).sum(dim=1) / count
