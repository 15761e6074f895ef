"""The encoder-decoder for translation.

Letters: B batch, S tokens of the source, T tokens of the target, M d_model, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suffice.errors import ShapeError
from suffice.layers import MLP, Block, CrossBlock, Dropout
from suffice.layers.block import ACTIVATIONS, CROSS_NORMS, EncodedSource, EncodedSources
from suffice.layers.inputs import check_rows
from suffice.layers.state import LayerState
from suffice.memory import Dynamic, Memory
from suffice.models.classifier import glorot
from suffice.models.config import (
    POSITIONS,
    ModelConfig,
    check_causal,
    check_crosses,
    check_unshared,
    specs_of_blocks,
)
from suffice.models.lm import Embedding
from suffice.models.state import ModelState, layer_states
from suffice.spec import AttentionSpec
from suffice.utils.torch_compat import check

EVERYTHING = Dynamic()
Specs = AttentionSpec | Sequence[AttentionSpec]


@dataclass(frozen=True, kw_only=True)
class TranslatorConfig(ModelConfig):
    """The sizes of an encoder-decoder.

    Args:
        source_vocabulary_size: ids of the source are below this.
        target_vocabulary_size: ids of the target are below this.
        length: the longest text on either side, tokens; without learned positions the model reads
            longer ones too, as far as its attention does.
        d_model: features.
        mlp_width: features inside a block's MLP.
        encoder_depth: blocks that read the source.
        decoder_depth: blocks that write the target.
        activation: function of the MLPs, "relu" or "gelu".
        norm: see `CrossBlock`.
        eps: epsilon of the layer norms.
        positions: vectors added to the embedded tokens: "learned", "sinusoidal" (see `sinusoidal`)
            or "none".
        dropout: probability, after each attention and each MLP.
        head_dropout: probability, before the head.

    Raises:
        ConfigError: naming the fields that are not legal, see `ModelConfig`.
    """

    source_vocabulary_size: int
    target_vocabulary_size: int
    length: int
    d_model: int
    mlp_width: int
    encoder_depth: int = 1
    decoder_depth: int = 2
    activation: str = "relu"
    norm: str = "post"
    eps: float = 1e-6
    positions: str = "learned"
    dropout: float = 0.0
    head_dropout: float = 0.0

    choices: ClassVar[dict[str, Collection[str]]] = {
        "activation": ACTIVATIONS,
        "norm": CROSS_NORMS,
        "positions": POSITIONS,
    }

    def build(
        self,
        encoder_spec: Specs,
        decoder_spec: Specs,
        cross_spec: Specs,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Translator:
        """Return a model of these sizes with the given attention; "meta" takes no memory."""
        return Translator(self, encoder_spec, decoder_spec, cross_spec, device=device, dtype=dtype)


class Translator(nn.Module):
    """An encoder of the source and a causal decoder of the target that attends to it.

    Args:
        config: the sizes.
        encoder_spec: the self-attention of every encoder block, or one spec for each.
        decoder_spec: the causal self-attention of every decoder block, or one spec for each.
        cross_spec: the attention to the source of every decoder block, or one spec for each. A
            mixing along the sequence, such as Super Attention's, mixes the source.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Shapes:
        source: int [B, S]; target: int [B, T] -> logits [B, T, V]

    Raises:
        ConfigError: if a spec does not fit the sizes, one of the decoder is not causal, or one of
            the cross-attention relates positions of one text.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3, in the sizes of Hosseini et al. 2024,
        arXiv:2403.01643, whose translators have one encoder and two decoder blocks. Differs:
        padding is left out on both sides.

    Example:
        >>> from suffice import preset
        >>> sizes = dict(source_vocabulary_size=50, target_vocabulary_size=40)
        >>> config = TranslatorConfig(length=9, d_model=16, mlp_width=32, **sizes)
        >>> both = preset("efficient", 16, 2)
        >>> model = config.build(both, preset("efficient", 16, 2, causal=True), both)
        >>> model(torch.randint(50, (3, 9)), torch.randint(40, (3, 7))).shape
        torch.Size([3, 7, 40])
    """

    def __init__(
        self,
        config: TranslatorConfig,
        encoder_spec: Specs,
        decoder_spec: Specs,
        cross_spec: Specs,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        sizes = {"d_model": config.d_model, "length": config.length}
        self.encoder_specs = specs_of_blocks(encoder_spec, depth=config.encoder_depth, **sizes)
        self.decoder_specs = specs_of_blocks(decoder_spec, depth=config.decoder_depth, **sizes)
        self.cross_specs = specs_of_blocks(cross_spec, depth=config.decoder_depth, **sizes)
        for specs in (self.encoder_specs, self.decoder_specs, self.cross_specs):
            check_unshared(specs, "a translator")
        check_causal(self.decoder_specs)
        check_crosses(self.cross_specs)
        self.source, self.target = (
            Embedding(size, config.length, config.d_model, positions=config.positions, **factory)
            for size in (config.source_vocabulary_size, config.target_vocabulary_size)
        )
        options = {"norm": config.norm, "eps": config.eps, "dropout": config.dropout, **factory}
        self.encoder = nn.ModuleList(
            Block(spec, _mlp(config, **factory), **options) for spec in self.encoder_specs
        )
        self.decoder = nn.ModuleList(
            CrossBlock(spec, cross_spec, _mlp(config, **factory), **options)
            for spec, cross_spec in zip(self.decoder_specs, self.cross_specs, strict=True)
        )
        self.encoder_norm, self.decoder_norm = (_final_norm(config, **factory) for _ in range(2))
        self.head_dropout = Dropout(config.head_dropout)
        self.head = glorot(config.d_model, config.target_vocabulary_size, **factory)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.uniform_(module.weight, -0.05, 0.05)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_valid: Tensor | None = None,
        target_valid: Tensor | None = None,
    ) -> Tensor:
        """Return logits [B, T, V]: at each token of the target, those of the next one.

        Args:
            source: ids [B, S] of the text to translate.
            target: ids [B, T] of the translation so far.
            source_valid: bool [B, S], True = a real token; padding may stand anywhere and hold
                any id.
            target_valid: bool [B, T], the same for the target. Logits at padding mean nothing.

        Raises:
            ShapeError: if a shape does not fit, or a text is longer than the model reads.
            MaskError: if a mask is not boolean.
        """
        return self.decode(target, self.encode(source, source_valid), source_valid, target_valid)

    def encode(self, source: Tensor, source_valid: Tensor | None = None) -> Tensor:
        """Return the features [B, S, M] of a source; arguments as of the whole model."""
        check_rows("source", source, source_valid)
        x = self.source(source, valid=source_valid)
        for block in self.encoder:
            x = block(x, valid=source_valid)
        return self.encoder_norm(x)

    def decode(
        self,
        target: Tensor,
        source: Tensor,
        source_valid: Tensor | None = None,
        target_valid: Tensor | None = None,
    ) -> Tensor:
        """Return logits [B, T, V] of a target, whose source `encode` has encoded: [B, S, M]."""
        check_rows("target", target, target_valid)
        check("source", source, (len(target), None, self.config.d_model))
        x = self.target(target, valid=target_valid)
        for block in self.decoder:
            x = block(x, source, source_valid=source_valid, valid=target_valid)
        return self.logits(self.decoder_norm(x))

    def state(
        self, source: Tensor, source_valid: Tensor | None = None, *, memory: Memory = EVERYTHING
    ) -> TranslatorState:
        """Return a state to write a translation with; see `TranslatorState`.

        Args:
            source: features [B, S, M] returned by `encode`.
            source_valid: bool [B, S], as given to `encode`.
            memory: the KV cache of each self-attention; layers of features keep their sums.

        Raises:
            ConfigError: if a layer cannot stream, or not with this memory.
        """
        check("source", source, (None, None, self.config.d_model))
        if source_valid is not None:
            check_rows("source", source[..., 0], source_valid)
            source = source.masked_fill(~source_valid[..., None], 0.0)
        sources = [EncodedSource.of(block.cross, source, source_valid) for block in self.decoder]
        layers = layer_states([block.attention for block in self.decoder], memory)
        return TranslatorState(layers, EncodedSources(sources))

    def features(
        self, target: Tensor, *, valid: Tensor | None = None, state: TranslatorState
    ) -> Tensor:
        """Return the input of the head, [B, T, M], of further ids [B, T]; else as `LM.features`."""
        check_rows("target", target, valid)
        x = self.target(target, valid=valid, positions=state.positions(target, valid))
        blocks = zip(self.decoder, state.layers, state.sources.layers, strict=True)
        for block, layer_state, source in blocks:
            x = block(x, source, valid=valid, state=layer_state)
        return self.decoder_norm(x)

    def logits(self, features: Tensor) -> Tensor:
        """Return the head's logits [..., V] of features [..., M]."""
        return self.head(self.head_dropout(features))


def _mlp(config: TranslatorConfig, **factory: Any) -> MLP:
    return MLP(
        config.d_model,
        config.mlp_width,
        activation=config.activation,
        dropout=config.dropout,
        inner_dropout=False,
        **factory,
    )


def _final_norm(config: TranslatorConfig, **factory: Any) -> nn.Module:
    """Return the norm behind the last block; post-norm blocks do without."""
    if config.norm == "post":
        return nn.Identity()
    return nn.LayerNorm(config.d_model, eps=config.eps, **factory)


class TranslatorState(ModelState):
    """The states of all self-attention layers, and the source's keys and values.

    Made by `Translator.state`, which computes the latter once; cross-attention layers without
    learned keys and values share the encoded source. `select` and `reorder` move rows of both;
    `drop_last` and `reset` concern the target alone, and the source stays.
    """

    def __init__(self, layers: list[LayerState], sources: EncodedSources) -> None:
        super().__init__(layers)
        self.sources = sources

    @property
    def nbytes(self) -> int:
        """Bytes of everything the state holds; what layers share is counted once."""
        return super().nbytes + self.sources.nbytes

    def positions(self, tokens: Tensor, valid: Tensor | None) -> Tensor:
        """Return the positions of the next tokens [B, T]: int [B or 1, T]."""
        if len(tokens) != self.sources.batch:
            raise ShapeError(
                f"{len(tokens)} rows of a target for a source of {self.sources.batch}; give as "
                "many, or select rows of the state."
            )
        return super().positions(tokens, valid)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order; rows may repeat."""
        super().select(rows)
        self.sources.select(rows)
