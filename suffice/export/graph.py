"""An attention layer as a graph can hold it: dense products and a mask, for any length.

Letters: B batch, H query heads, G key/value heads, T queries, P earlier keys, S = P + T keys,
D and E head widths.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.layers import Attention
from suffice.layers.inputs import UNMASKED, Inputs
from suffice.layers.inputs import positions as count_real
from suffice.mixing import RowLayout
from suffice.models import LM
from suffice.models.classifier import Classifier
from suffice.models.vit import ViT
from suffice.spec import AttentionSpec

BOTH, KEYS, VALUES, RAW = "keys_and_values", "keys", "values", "values_before_mixing"


class Places:
    """Where queries and keys stand in one call; what layers read alike is computed once.

    Args:
        queries: int [B or 1, T], positions.
        keys: int [B or 1, S], positions, -1 = padding.
        valid: bool [B, T], True = a real query; None = all are.
    """

    def __init__(self, queries: Tensor, keys: Tensor, valid: Tensor | None) -> None:
        self.queries, self.keys, self.valid = queries, keys, valid
        self._found: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what was made for a key, or make it."""
        if key not in self._found:
            self._found[key] = make()
        return self._found[key]

    def allowed(self, spec: AttentionSpec) -> Tensor:
        """Return True where a query may see a key: bool, broadcasts to [B, H, T, S]."""
        return self.once(spec.pattern, lambda: self._allowed(spec))

    def _allowed(self, spec: AttentionSpec) -> Tensor:
        q, k = self.queries[:, None, :, None], self.keys[:, None, None, :]
        seen = spec.pattern.allowed(q, k.clamp(min=0)) & (k >= 0)
        return seen if self.valid is None else seen & self.valid[:, None, :, None]

    def bias(self, spec: AttentionSpec) -> Tensor:
        """Return what the position adds to the products: float32, broadcasts to [B, H, T, S]."""
        q, k = self.queries[:, None, :, None], self.keys[:, None, None, :].clamp(min=0)
        made = lambda: spec.position.bias(spec.num_heads, q, k).float()  # noqa: E731
        return self.once((spec.position, spec.num_heads), made)


def held(spec: AttentionSpec) -> tuple[str, ...]:
    """Return what a layer keeps of the past, by name; each is [B, G, P, D].

    Raises:
        ConfigError: if it keeps no keys and values.

    Example:
        >>> from suffice import preset
        >>> held(preset("efficient", 8, 2, causal=True))
        ('keys_and_values',)
    """
    check(spec)
    if len(spec.cached_widths) == 1:
        return (BOTH,)
    return (KEYS, VALUES, RAW) if spec.unmixed_widths else (KEYS, VALUES)


def check(spec: AttentionSpec) -> None:
    """Refuse a layer that such a graph cannot hold.

    Raises:
        ConfigError: saying what it does.
    """
    if not spec.kernel.weighs_pairs:
        raise ConfigError(
            f"{type(spec.kernel).__name__} keeps sums of features, which are exported to nothing "
            "yet: a dense graph of them would cost what they save. Run it with `suffice generate`."
        )
    if spec.past.reads:
        raise ConfigError(
            f"{type(spec.past).__name__} compresses the past segment by segment, which depends on "
            "lengths as no graph for any length can. Run it with `suffice generate`."
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _ChunkInputs(Inputs):
    """Inputs that share what depends on their places with the other layers."""

    places: Places

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` gives, made by the first layer."""
        return self.places.once(key, make)


class Plain(nn.Module):
    """What an `Attention` computes, of what it holds; padding gives 0 and is never read.

    Args:
        layer: the layer; its maps are shared.

    Raises:
        ConfigError: if a graph cannot hold it.

    Shapes:
        x: [B, T, d_model] -> [B, T, d_model]
    """

    def __init__(self, layer: Attention) -> None:
        super().__init__()
        check(layer.spec)
        self.layer, self.spec = layer, layer.spec

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """Return the attended x of whole rows; valid [B, T], True = a real position."""
        at = torch.arange(x.shape[1], device=x.device)[None]
        keys = at
        if valid is not None:
            x = x.masked_fill(~valid[..., None], 0.0)
            at = count_real(valid, None)
            keys = at.masked_fill(~valid, -1)
        inputs = Inputs(x=x, source=x, masks=UNMASKED, rows=RowLayout(valid=valid, positions=at))
        q, cached, _ = self.layer.encode(inputs)
        rows = RowLayout() if valid is None else inputs.rows
        cached = self.layer.mixing(cached[0], cached[-1], rows)
        return self._weighed(q, *cached, Places(at, keys, valid))

    def step(
        self, x: Tensor, places: Places, past: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the attended x that follows a past, and the past of what follows it.

        Args:
            x: [B, T, d_model].
            places: of queries and keys, with valid.
            past: what `held` names.
        """
        spec, layer = self.spec, self.layer
        x = x.masked_fill(~places.valid[..., None], 0.0)
        rows = RowLayout(positions=places.queries)
        q, cached, _ = layer.encode(
            _ChunkInputs(x=x, source=x, masks=UNMASKED, rows=rows, places=places)
        )
        k, v = cached[0], cached[-1]
        keys = torch.cat([past[0], k], dim=2)
        if len(past) == 1:
            return self._weighed(q, keys, keys, places), (keys,)
        raw = v
        if spec.mixing.mixes:
            raw = v.masked_fill(~places.valid[:, None, :, None], 0.0)
            v = layer.mixing.continued(
                past[-1] if len(past) > 2 else past[0],
                raw,
                places.queries,
                places.keys.clamp(min=0),
            )
        values = torch.cat([past[1], v], dim=2)
        kept = (keys, values)
        if len(past) > 2:  # noqa: PLR2004 - keys, values and those before the mixing
            kept = (*kept, torch.cat([past[2], raw], dim=2))
        return self._weighed(q, keys, values, places), kept

    def _weighed(self, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
        """Return the output of queries [B, H, T, D] of keys [B, G, S, D] and values."""
        spec, layer = self.spec, self.layer
        batch, heads, length, width = q.shape
        groups, keys = k.shape[1], k.shape[2]
        together = q.reshape(batch, groups, heads // groups * length, width)
        products = torch.matmul(together, k.transpose(2, 3)) * spec.score_scale
        products = products.reshape(batch, heads, length, keys)
        if spec.position.biases:
            products = products + places.bias(spec)
        if spec.mixing.keeps_keys:
            allowed = places.allowed(spec)
            # no sentinel is exactly "masked" where nothing is allowed: such a row is set to 0
            products = products.masked_fill(~allowed, torch.finfo(products.dtype).min)
            weights = products.softmax(dim=-1).masked_fill(~allowed, 0.0)
        else:
            weights = products.softmax(dim=-1)
        weights = weights.reshape(batch, groups, heads // groups * length, keys)
        out = torch.matmul(weights, v).reshape(batch, heads, length, -1)
        return layer.o_proj(out.transpose(1, 2).flatten(2))


TOKENS, VALID, LOGITS, PLACES = "tokens", "valid", "logits", "places"
TYPES = {torch.int64: "int64", torch.bool: "bool", torch.float32: "float32"}


@dataclass(frozen=True, kw_only=True)
class Port:
    """One input or output.

    Args:
        name: in the graph.
        dtype: of its numbers.
        shape: sizes, a name where it is free; free sizes of one name are equal.
        holds: what it is.
        becomes: of a state, the output that is this input of the next call.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    holds: str
    becomes: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the port as plain data."""
        told: dict[str, Any] = {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}
        told["dynamic_axes"] = {
            str(axis): size for axis, size in enumerate(self.shape) if isinstance(size, str)
        }
        told["holds"] = self.holds
        return told | ({"becomes": self.becomes} if self.becomes else {})


class Decoder(nn.Module):
    """An LM with plain attention whose state is a list of tensors.

    Args:
        lm: in evaluation and float32; it is copied.

    Shapes:
        tokens: int [B, T]; valid: bool [B, T], True = a real token; places: int [B, P], where the
        earlier tokens stand, -1 = padding; past: tensors [B, G, P, D] -> logits [B, T, V], then
        places and past with the new tokens behind the earlier ones

    Raises:
        ConfigError: if no graph can hold a layer.
    """

    def __init__(self, lm: LM) -> None:
        super().__init__()
        self.lm = copy.deepcopy(lm)
        self.kept = []
        for number, block in enumerate(self.lm.blocks):
            try:
                self.kept.append(held(block.attention.spec))
            except ConfigError as error:
                raise ConfigError(f"layer {number}: {error}") from error
            block.attention = Plain(block.attention)

    def forward(
        self, tokens: Tensor, valid: Tensor, places: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return logits, places and the past."""
        tokens = tokens.masked_fill(~valid, 0)
        # a maximum needs something to choose from, and there may be no past
        first = torch.full_like(tokens[:, :1], -1)
        read = torch.cat([first, places], dim=1).amax(dim=1) + 1
        real = valid.long()
        at = read[:, None] + real.cumsum(dim=1) - real
        known = torch.cat([places, at.masked_fill(~valid, -1)], dim=1)
        where = Places(at, known, valid)
        x = self._embedded(tokens, at)
        parts, kept = iter(past), []
        for block, names in zip(self.lm.blocks, self.kept, strict=True):
            own = tuple(next(parts) for _ in names)
            seen, own = block.attention.step(block.attention_norm(x), where, own)
            x = x + seen
            x = x + block.mlp(block.mlp_norm(x))
            kept += own
        return self.lm.logits(self.lm.norm(x)), known, *kept

    def _embedded(self, tokens: Tensor, at: Tensor) -> Tensor:
        embedding = self.lm.embedding
        x = embedding.tokens(tokens)
        return x if embedding.position_type == "none" else x + embedding.at(at, x)

    def inputs(self) -> list[Port]:
        """Return the ports of the inputs, in order."""
        ports = [
            Port(name=TOKENS, dtype="int64", shape=("batch", "chunk"), holds="ids"),
            Port(
                name=VALID,
                dtype="bool",
                shape=("batch", "chunk"),
                holds="True = a real token; padding may stand anywhere and hold any id",
            ),
        ]
        return ports + [
            Port(
                name=f"past.{name}",
                dtype=dtype,
                shape=tuple("past" if size == "total" else size for size in shape),
                holds=holds,
                becomes=f"present.{name}",
            )
            for name, dtype, shape, holds in self._state()
        ]

    def outputs(self) -> list[Port]:
        """Return the ports of the outputs, in order."""
        size = self.lm.config.vocabulary_size
        logits = Port(
            name=LOGITS,
            dtype="float32",
            shape=("batch", "chunk", size),
            holds="at each token, of the one that follows it; at padding they mean nothing",
        )
        return [logits] + [
            Port(name=f"present.{name}", dtype=dtype, shape=shape, holds=holds)
            for name, dtype, shape, holds in self._state()
        ]

    def _state(self) -> list[tuple[str, str, tuple[int | str, ...], str]]:
        told = "position of each token read, -1 = padding"
        found: list[tuple[str, str, tuple[int | str, ...], str]]
        found = [(PLACES, "int64", ("batch", "total"), told)]
        for number, (names, spec) in enumerate(zip(self.kept, self.lm.specs, strict=True)):
            shape = ("batch", spec.kv_heads, "total", spec.head_width)
            found += [(f"{number}.{n}", "float32", shape, n.replace("_", " ")) for n in names]
        return found


def reach(lm: LM) -> int | None:
    """Return how many latest tokens any layer reads, its own included; None = all."""
    reaches = [spec.pattern.reach for spec in lm.specs]
    if any(one is None for one in reaches) or any(spec.mixing.mixes for spec in lm.specs):
        return None
    return max(reaches)


IMAGES = "images"


class Whole(nn.Module):
    """A Classifier or ViT with plain attention.

    Args:
        model: in evaluation and float32; it is copied.

    Shapes:
        tokens: int [B, T] and valid: bool [B, T], or images: [B, C, S, S] -> logits [B, N]

    Raises:
        ConfigError: if no graph can hold a layer.
    """

    def __init__(self, model: Classifier | ViT) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        for number, block in enumerate(self.model.blocks):
            try:
                block.attention = Plain(block.attention)
            except ConfigError as error:
                raise ConfigError(f"layer {number}: {error}") from error
        self.pictures = isinstance(model, ViT)
        self.masks = not self.pictures and not model.config.reads_padding

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return the logits."""
        return self.model(x, valid)

    def inputs(self) -> list[Port]:
        """Return the ports of the inputs, in order."""
        config = self.model.config
        if self.pictures:
            side = config.image_size
            shape = ("batch", config.channels, side, side)
            holds = "pixels, normalised as in training"
            return [Port(name=IMAGES, dtype="float32", shape=shape, holds=holds)]
        shape = ("batch", "length")
        ports = [Port(name=TOKENS, dtype="int64", shape=shape, holds="ids")]
        if self.masks:
            ports.append(Port(name=VALID, dtype="bool", shape=shape, holds="True = a real token"))
        return ports

    def outputs(self) -> list[Port]:
        """Return the ports of the outputs, in order."""
        shape = ("batch", self.model.config.num_classes)
        return [Port(name=LOGITS, dtype="float32", shape=shape, holds="of the classes")]


SIZES = {"batch": 2, "chunk": 3, "past": 4, "length": 3}  # any from 2; a graph may fix 0 and 1
DTYPES = {name: dtype for dtype, name in TYPES.items()}


def traced(module: Decoder | Whole) -> torch.export.ExportedProgram:
    """Return the graph of a module.

    Raises:
        ConfigError: if torch cannot trace what it computes for any length.
    """
    ports = module.inputs()
    samples = [_sample(port) for port in ports]
    free = [_free(port) for port in ports]
    given, dims = arranged(module, samples), arranged(module, free)
    try:
        with torch.no_grad(), quiet():
            return torch.export.export(module, given, dynamic_shapes=dims, strict=False)
    except Exception as error:  # noqa: BLE001 - torch has no class of its own for these
        told = " ".join(str(error).split())
        raise ConfigError(
            f"torch cannot trace this model for every length ({told:.300}); run it with "
            "`suffice generate`, or export a layer composition without what is named there."
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's exporters from telling of themselves."""
    root = logging.getLogger("torch")
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)


def _sample(port: Port) -> Tensor:
    sizes = [SIZES[size] if isinstance(size, str) else size for size in port.shape]
    if port.dtype == "bool":
        return torch.ones(sizes, dtype=torch.bool)
    if port.dtype == "int64":
        return torch.arange(sizes[1]).expand(sizes).clone() % 2
    return torch.zeros(sizes)


def _free(port: Port) -> dict[int, object]:
    free = [axis for axis, size in enumerate(port.shape) if isinstance(size, str)]
    return dict.fromkeys(free, torch.export.Dim.DYNAMIC)


def arranged(module: nn.Module, parts: Sequence) -> tuple:
    """Return what goes into a call: a Decoder takes its past as one list."""
    if isinstance(module, Decoder):
        return (*parts[:3], list(parts[3:]))
    return tuple(parts)
