"""The text classifier.

Letters: B batch, T tokens, M d_model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, ShapeError
from suffice.layers import MLP, Block, Dropout, SwiGLU
from suffice.layers.basic import NORMALISATIONS, init_glorot, normalisation, sinusoidal
from suffice.layers.block import ACTIVATIONS, GATES, NORMS, run_blocks
from suffice.layers.inputs import check_rows
from suffice.layers.positions import positions as count_real
from suffice.models.config import POSITIONS, ModelConfig, specs_of_blocks
from suffice.ops.linear import Linear
from suffice.ops.op import is_traced
from suffice.spec import AttentionSpec
from suffice.utils.torch_compat import readable

EACH_TOKEN = ("none", "late")  # poolings whose head reads each token
POOLINGS = ("mean", "first", *EACH_TOKEN)
PACKED_SAVING = 1 << 16  # padding times d_model^2, of a text, from which packed rows are faster


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
        activation: function of the blocks' MLPs: one of `MLP`, or "swiglu", "geglu" or
            "geglu_tanh" (see `SwiGLU`), which have a third map.
        reads_padding: True to attend to and average padding like any token, as the Keras example
            and the paper do; False to leave it out.
        positions: vectors added to the embedded tokens: "learned", "sinusoidal" (see `sinusoidal`)
            or "none", for attention that encodes positions itself.
        embedding_norm: a layer norm of the embedded tokens, as BERT has.
        pooling: the vector of a text: the "mean" of all tokens, or the "first" token as in BERT;
            "none" for the head's logits of each token, as of a masked language model; "late" for
            the mean of these, as in EuroBERT.
        head_activation: function of the head's hidden layers.
        head_norm: a norm after each hidden layer of the head, as in ModernBERT.
        normalisation: "layer" or "rms" (see `RMSNorm`), of all norms.
        bias: bias terms in the MLPs and on layer norms.
        first_norm: False for a first block whose attention reads its input as it is, after a norm
            of the embedded tokens, as in ModernBERT.
        final_norm: a norm after the last block.

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
    head_norm: bool = False
    normalisation: str = "layer"
    bias: bool = True
    first_norm: bool = True
    final_norm: bool = False

    choices: ClassVar[dict[str, Collection[str]]] = {
        "norm": NORMS,
        "activation": (*ACTIVATIONS, *GATES),
        "positions": POSITIONS,
        "pooling": POOLINGS,
        "head_activation": ACTIVATIONS,
        "normalisation": NORMALISATIONS,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes is not None and self.num_classes < 1:
            raise ConfigError(f"num_classes={self.num_classes}: give at least 1, or None.")
        if self.num_classes is None and self.pooling == "late":
            raise ConfigError('pooling="late" is the mean of logits; give num_classes with it.')
        if not self.first_norm and self.norm != "pre":
            raise ConfigError(f'first_norm=False: a norm={self.norm!r} block has none; give "pre".')

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
        tokens: int [B, T] -> logits [B, num_classes], or features [B, d_model] without a head;
            with pooling="none" those of each token, [B, T, *]
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
        norms = {"eps": config.eps, "bias": config.bias}
        make_norm = partial(normalisation, config.normalisation, **norms)
        self.embedding_norm = make_norm(d_model) if config.embedding_norm else None
        for table in filter(None, (self.tokens, self.positions)):
            nn.init.uniform_(table.weight, -0.05, 0.05)
        mlp = {"activation": config.activation, "dropout": config.dropout, "bias": config.bias}
        make_mlp = SwiGLU if config.activation in GATES else partial(MLP, inner_dropout=False)
        options = {**norms, "norm": config.norm, "normalisation": config.normalisation}
        options["dropout"] = config.dropout
        self.blocks: Any = nn.ModuleList(
            Block(block_spec, make_mlp(d_model, config.mlp_width, **mlp), **options)
            for block_spec in specs
        )
        if not config.first_norm:
            self.blocks[0].attention_norm = nn.Identity()
        self.norm = make_norm(d_model) if config.final_norm else None
        self.dropout = Dropout(config.dropout)
        self.head: nn.Module = nn.Identity()
        if config.num_classes is not None:
            sizes = d_model, config.head_widths, config.num_classes
            norm = make_norm if config.head_norm else None
            self.head = head(*sizes, config.head_activation, config.dropout, norm)

    @property
    def leaves_padding_out(self) -> bool:
        """Whether a text gives the same however much it is padded."""
        return not self.config.reads_padding

    def last_of_row(self, row: Tensor | None) -> Tensor | None:
        """Return tokens or a mask [B, T] without the first column where T is config.length + 1.

        Tokenizers put a start before the last tokens of a text, and a text that fills a row of
        training loses it. Models that read another place than the mean take rows as they are.
        """
        if row is None or self.config.pooling != "mean":
            return row
        return row[:, row.shape[1] // (self.config.length + 1) :]

    def forward(self, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return logits [B, num_classes] of tokens [B, T]; see `pooling` for other shapes.

        Padding costs little on a CPU: where texts of softmax attention are padded by much, their
        real tokens are computed as one row of documents.

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
        padding = None if valid is None else count_padding(valid)
        if config.reads_padding or padding == 0:
            valid = None
        each = config.pooling in EACH_TOKEN
        if valid is None or padding is None or not self._packs(valid, padding):
            x = self._features(tokens, valid=valid)
            x = self.head(self.dropout(x)) if each else x
        else:
            texts = torch.arange(len(tokens))[:, None].expand_as(tokens)
            x = self._features(tokens[valid][None], segments=texts[valid][None])
            x = unpacked(self.head(self.dropout(x)) if each else x, valid)
        if config.pooling == "none":
            return x
        pooled = first_of_real(x, valid) if config.pooling == "first" else mean_of_real(x, valid)
        return pooled if each else self.head(self.dropout(pooled))

    def _features(
        self, tokens: Tensor, *, valid: Tensor | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """Return the features [B, T, M] of tokens before pooling."""
        if valid is not None:
            tokens = tokens.masked_fill(~valid, 0)
        x = self._add_positions(self.tokens(tokens), valid, segments)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        restriction = {"valid": valid} if segments is None else {"segments": segments}
        x = run_blocks(self.blocks, self.specs, x, **restriction)
        return x if self.norm is None else self.norm(x)

    def _packs(self, valid: Tensor, padding: int) -> bool:
        """Return whether real tokens in one row take less time than padded rows."""
        if self.training and self.config.dropout:  # drawn for the whole padded batch
            return False
        enough = PACKED_SAVING * len(valid) <= padding * self.config.d_model**2
        if not enough or padding == valid.numel():
            return False
        size = valid.numel(), self.tokens.weight.dtype
        layers = {block.attention.spec: block.attention for block in self.blocks}
        return all(layer.reads_apart(*size) for layer in layers.values())

    def _add_positions(self, x: Tensor, valid: Tensor | None, segments: Tensor | None) -> Tensor:
        if self.config.positions == "none":
            return x
        positions = torch.arange(x.shape[1], device=x.device)
        if valid is not None or segments is not None:
            positions = count_real(valid, segments)
        if self.positions is not None:
            return x + self.positions(positions)
        length = x.shape[1]
        return x + sinusoidal(length, x.shape[2], device=x.device, dtype=x.dtype)[positions]


def head(
    features: int,
    widths: tuple[int, ...],
    num_classes: int,
    activation: str,
    dropout: float,
    norm: Callable[[int], nn.Module] | None = None,
) -> nn.Sequential:
    """Return hidden layers of these widths, each with `norm` if given, then the map to logits."""
    layers: list[nn.Module] = []
    for width in widths:
        norms = [] if norm is None else [norm(width)]
        layers += [glorot(features, width), ACTIVATIONS[activation](), *norms, Dropout(dropout)]
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


def first_of_real(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return the first real token [B, M] of x [B, T, M]."""
    if valid is None:
        return x[:, 0]
    return x[torch.arange(len(x), device=x.device), valid.int().argmax(dim=1)]


def count_padding(valid: Tensor) -> int | None:
    """Return how many positions are padding; None where it cannot be known in time."""
    if not readable(valid) or is_traced():
        return None
    return valid.numel() - int(valid.sum())


def unpacked(x: Tensor, valid: Tensor) -> Tensor:
    """Return real tokens [1, N, M] as padded rows [B, T, M], 0 at padding."""
    rows = x.new_zeros(*valid.shape, x.shape[2])
    rows[valid] = x[0]
    return rows
