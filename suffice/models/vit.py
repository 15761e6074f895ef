"""The vision Transformer.

Letters: B batch, C channels, S image side in pixels, T tokens, M d_model.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from suffice.errors import ConfigError
from suffice.layers import MLP, Block, Dropout
from suffice.layers.basic import sinusoidal
from suffice.layers.block import NORMS, run_blocks
from suffice.models.classifier import glorot, head, mean_of_real
from suffice.models.config import POSITIONS, ModelConfig, specs_of_blocks
from suffice.spec import AttentionSpec
from suffice.utils.torch_compat import check, check_mask

POOLINGS: dict[str, tuple[str, ...]] = {
    "mean": (),
    "flatten": (),
    "class_token": ("class_token",),
    "distilled": ("class_token", "distillation_token"),
}
"""How tokens become one vector, and the tokens that each needs before the patches."""


@dataclass(frozen=True, kw_only=True)
class ViTConfig(ModelConfig):
    """The sizes of a vision Transformer.

    Args:
        image_size: side of the square input, pixels.
        patch_size: side of a patch, pixels; divides image_size.
        num_classes: outputs.
        d_model: features.
        depth: blocks.
        mlp_width: features inside a block's MLP.
        channels: channels of the input.
        pooling: the vector of an image: "mean" of all tokens, "flatten" all, a "class_token", or
            "distilled": a class token and a distillation token, each with its head, and the mean
            of both heads (DeiT, Touvron et al. 2020, arXiv:2012.12877, section 4).
        head_widths: hidden layers of the head.
        dropout: probability in blocks, after the attention and inside the MLP.
        head_dropout: probability, before and inside the head.
        norm: "pre" or "post", see `Block`.
        eps: epsilon of the layer norms.
        positions: vectors added to the embedded patches: "learned", "sinusoidal" by number of the
            token (see `sinusoidal`) or "none", for attention that encodes positions itself.

    Raises:
        ConfigError: naming the fields that are not legal, see `ModelConfig`, or a patch that does
            not divide the image.
    """

    image_size: int
    patch_size: int
    num_classes: int
    d_model: int
    depth: int
    mlp_width: int
    channels: int = 1
    pooling: str = "mean"
    head_widths: tuple[int, ...] = ()
    dropout: float = 0.0
    head_dropout: float = 0.0
    norm: str = "pre"
    eps: float = 1e-6
    positions: str = "learned"

    choices: ClassVar[dict[str, Collection[str]]] = {
        "pooling": POOLINGS,
        "norm": NORMS,
        "positions": POSITIONS,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"patch_size={self.patch_size} does not divide image_size={self.image_size}; "
                "give a divisor."
            )

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def length(self) -> int:
        """Tokens: patches, and those before them."""
        return self.num_patches + len(self.tokens)

    @property
    def tokens(self) -> tuple[str, ...]:
        """Names of the learned tokens before the patches."""
        return POOLINGS[self.pooling]

    def build(self, spec: AttentionSpec | Sequence[AttentionSpec]) -> ViT:
        """Return a model of these sizes with the given attention."""
        return ViT(self, spec)


class ViT(nn.Module):
    """Patches, positions, blocks of any attention, a norm and a head.

    Args:
        config: the sizes.
        spec: the attention of every block, or one spec for each.

    Shapes:
        images: [B, C, S, S] -> logits [B, num_classes]

    Source: Dosovitskiy et al. 2020, arXiv:2010.11929, section 3.1.

    Example:
        >>> from suffice import preset
        >>> sizes = dict(image_size=8, patch_size=2, num_classes=10, depth=1, mlp_width=32)
        >>> config = ViTConfig(d_model=16, **sizes)
        >>> config.build(preset("super_attention", 16, 2, length=config.length))(
        ...     torch.zeros(3, 1, 8, 8)
        ... ).shape
        torch.Size([3, 10])
    """

    def __init__(self, config: ViTConfig, spec: AttentionSpec | Sequence[AttentionSpec]) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        self.specs = specs = specs_of_blocks(
            spec, depth=config.depth, d_model=d_model, length=config.length
        )
        self.patches = glorot(config.channels * config.patch_size**2, d_model)
        self.positions = None
        if config.positions == "learned":
            self.positions = nn.Parameter(torch.empty(config.length, d_model))
            nn.init.normal_(self.positions, std=0.02)
        for token in config.tokens:
            self.register_parameter(token, nn.Parameter(torch.zeros(d_model)))
        self.blocks: Any = nn.ModuleList(
            Block(
                block_spec,
                MLP(d_model, config.mlp_width, dropout=config.dropout),
                norm=config.norm,
                eps=config.eps,
                dropout=config.dropout,
            )
            for block_spec in specs
        )
        self.norm = nn.LayerNorm(d_model, eps=config.eps)
        features = d_model * (config.length if config.pooling == "flatten" else 1)
        self.head_dropout = Dropout(config.head_dropout)
        sizes = (features, config.head_widths, config.num_classes, "gelu", config.head_dropout)
        self.head = head(*sizes)
        if config.pooling == "distilled":
            self.distillation_head = head(*sizes)

    def forward(self, images: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return logits [B, num_classes] of images [B, C, S, S].

        Args:
            images: normalised pixels.
            valid: bool [B, patches], True = a real patch (images of different sizes in one
                batch), rows of the image first; what a padded patch holds is never read, and it
                is neither attended nor pooled. Not with pooling="flatten".

        Raises:
            ShapeError: if the images have another size, or valid another shape.
            MaskError: if valid is not boolean.
            ConfigError: if valid is given to a model that flattens.
        """
        config = self.config
        side = config.image_size
        check("images", images, (None, config.channels, side, side))
        if valid is not None:
            self._check_valid(valid, len(images))
        x = self.patches(self._patches_of(images))
        if config.tokens:
            tokens = torch.stack([getattr(self, token) for token in config.tokens])
            x = torch.cat([tokens.expand(x.shape[0], -1, -1), x], dim=1)
            if valid is not None:
                valid = pad(valid, (len(tokens), 0), value=True)
        x = self._add_positions(x)
        if valid is not None:
            x = x.masked_fill(~valid[..., None], 0.0)
        x = run_blocks(self.blocks, self.specs, x, valid=valid)
        x = self.norm(x)
        logits = self.head(self.head_dropout(self._pool(x, valid)))
        if config.pooling == "distilled":
            logits = (logits + self.distillation_head(self.head_dropout(x[:, 1]))) / 2
        return logits

    def _check_valid(self, valid: Tensor, images: int) -> None:
        check_mask("valid", valid)
        check("valid", valid, (images, self.config.num_patches), hint="One entry for each patch.")
        if self.config.pooling == "flatten":
            raise ConfigError(
                "pooling='flatten' has a weight for every patch and cannot leave padded ones out; "
                "use pooling='mean' or 'class_token' with valid=."
            )

    def _patches_of(self, images: Tensor) -> Tensor:
        """Cut images into patches [B, patches, C * patch^2], rows of the image first."""
        patch = self.config.patch_size
        rows = images.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # B C h p w p
        return rows.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    def _add_positions(self, x: Tensor) -> Tensor:
        if self.positions is not None:
            return x + self.positions
        if self.config.positions == "none":
            return x
        return x + sinusoidal(x.shape[1], x.shape[2], device=x.device, dtype=x.dtype)

    def _pool(self, x: Tensor, valid: Tensor | None) -> Tensor:
        if self.config.pooling == "flatten":
            return x.flatten(1)
        if self.config.tokens:
            return x[:, 0]
        return mean_of_real(x, valid)
