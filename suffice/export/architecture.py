"""Chooses the transformers class that computes a model, and converts the weights to its layout.

A model fits a class if what the class reads in the entries that it writes is the model again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from suffice.convert.calibration import attention_layers
from suffice.convert.maps import Maps, build, linear_maps
from suffice.encoders import HeadLayerNorm, NoNorm, ProjectionRMS
from suffice.errors import ConfigError
from suffice.layers import Attention
from suffice.layers.basic import sinusoidal
from suffice.models import LM
from suffice.models.architectures.architecture import Architecture, ConfigReader
from suffice.models.architectures.hugging_face import READ, architecture_of
from suffice.models.architectures.rope import rope_parameters, rotary_of
from suffice.positions import Rope
from suffice.spec import AttentionSpec
from suffice.spec.lowering import BoundedSoftmax, DenseSoftmax, not_dense

TABLES = ("embedding.positions.weight", "positions.weight", "positions")


def config_of(model: nn.Module, *, begin: int | None = None, end: int | None = None) -> dict:
    """Return the config.json of the class of transformers that computes the same as a model.

    Raises:
        ConfigError: if there is no such class, saying what it would have to compute.

    Example:
        >>> from suffice import preset
        >>> from suffice.models import LMConfig
        >>> sizes = dict(vocabulary_size=9, length=16, d_model=16, depth=2, mlp_width=32)
        >>> lm = LMConfig(**sizes).build(preset("efficient", 16, 4, causal=True))
        >>> config_of(lm)["model_type"]
        'gpt2'
    """
    specs = [block.attention.spec for block in model.blocks]
    for number, spec in enumerate(specs):
        _check_softmax(spec, number)
    misfits: dict[str, dict[str, str]] = {}
    for architecture in READ:
        if architecture.entries is None or not isinstance(model, architecture.model):
            continue
        try:
            entries = {
                "model_type": architecture.model_type,
                "architectures": [architecture.class_name],
                **architecture.entries(model),
            }
            misfits[architecture.class_name] = _misfits(model, specs, architecture, entries)
        except ConfigError as error:
            misfits[architecture.class_name] = {"sizes": str(error)}
        if not misfits[architecture.class_name]:
            ids = {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": None}
            return entries | (ids if isinstance(model, LM) else {})
    nearest = min(misfits, key=lambda name: ("sizes" in misfits[name], len(misfits[name])))
    experts = isinstance(model, LM) and model.config.experts is not None
    raise _refusal(
        f"the nearest is {nearest}, but {'; '.join(misfits[nearest].values())}",
        "run it with `suffice generate`" if experts else ELSEWHERE,
    )


UNCOMPARED = ("dropout", "head_dropout", "start", "length")
"""Fields of a config that change no logit of a text that both read."""
ELSEWHERE = "export it to onnx, which holds plain softmax attention of any encoder and pattern"


def _misfits(
    model: Any, specs: Sequence[AttentionSpec], architecture: Architecture, entries: dict[str, Any]
) -> dict[str, str]:
    """Return, by field, what the class that reads the entries computes in another way."""
    config = model.config
    read, stock = architecture.sizes(ConfigReader(entries, architecture.class_name))
    stock = [stock] * len(specs) if isinstance(stock, AttentionSpec) else stock
    misfits = {}
    for field in fields(config):
        ours, theirs = getattr(config, field.name), getattr(read, field.name)
        # what only the class has is zero, and its table holds any positions
        can_hold = (field.name == "bias" and theirs) or (
            field.name == "positions" and theirs == "learned"
        )
        if ours != theirs and not can_hold and field.name not in UNCOMPARED:
            misfits[field.name] = f"the model has {field.name}={ours!r}, not {theirs!r}"
    for number, pair in enumerate(zip(specs, stock, strict=True)):
        misfits = _layer_misfits(*pair, number, config.length) | misfits
    return misfits


CONVERTED = ("encoder", "num_kv_heads", "head_dim", "scale", "bias", "dropout")
"""Fields of a spec that a class's maps of queries, keys and values take in."""


def _layer_misfits(
    spec: AttentionSpec, stock: AttentionSpec, number: int, length: int
) -> dict[str, str]:
    """Return, by field, what a class's layer computes in another way than a model's."""
    names = [field.name for field in fields(spec) if field.name not in CONVERTED]
    names.append("head_width")
    if stock.bias < spec.bias:
        names.append("bias")
    if type(stock.norm) in (HeadLayerNorm, ProjectionRMS):  # each head has its own gains
        names.append("kv_heads")
    return {
        name: f"layer {number} has {name}={getattr(spec, name)!r}, not {getattr(stock, name)!r}"
        for name in names
        if _compared(spec, name, length) != _compared(stock, name, length)
    }


def _compared(spec: AttentionSpec, name: str, length: int) -> Any:
    """Return a field, where two values may say the same in one form."""
    value = getattr(spec, name)
    if name == "pattern":
        return value.band() or value
    rope = rotary_of(spec) if name == "position" else None
    return value if rope is None else rope_parameters(rope, spec.head_width, length)


def _refusal(why: str, instead: str = ELSEWHERE) -> ConfigError:
    return ConfigError(f"no class of transformers computes this model: {why}; {instead}.")


def _check_softmax(spec: AttentionSpec, number: int) -> None:
    spec = replace(spec, norm=NoNorm())  # of queries and keys, which some classes have
    lowered = spec.lower()
    field = None if isinstance(lowered, BoundedSoftmax) else not_dense(spec)
    if isinstance(lowered, DenseSoftmax) and lowered.value_width != lowered.key_width:
        field = "encoder"
    if field is not None:
        raise _refusal(f"layer {number} has {field}={getattr(spec, field)!r}")


@torch.no_grad()
def stock_model(
    model: nn.Module, config: dict[str, Any], kv_heads: Sequence[int] | None = None
) -> nn.Module:
    """Return the model that a config.json describes, with weights to compute the same as another.

    Keys and values that are columns become maps, shared heads are repeated where the class has
    none, rotary pairs are brought into its order, and tensors that only the class has are zero.

    Args:
        model: a model in float32.
        config: its config.json, by `config_of`.
        kv_heads: key/value heads of each layer, for programs in which they may differ; None: those
            of `config`.
    """
    architecture, reader = architecture_of(config, "config.json")
    stock = architecture.build(reader)
    if kv_heads is not None:
        pairs = zip(stock.specs, kv_heads, strict=True)
        stock = stock.config.build([replace(spec, num_kv_heads=heads) for spec, heads in pairs])
    specs = {name: layer.spec for name, layer in attention_layers(stock).items()}
    state = {}
    for name, layer in attention_layers(model).items():
        built = build(_stock_maps(layer, specs[name]), specs[name], like=layer)
        _adapt_gains(built, layer.spec)
        state |= {f"{name}.{part}": tensor for part, tensor in built.state_dict().items()}
    weights = model.state_dict()
    sinusoids = getattr(model.config, "positions", "") == "sinusoidal"
    for name, tensor in stock.state_dict().items():
        if name in state:
            continue
        if name in weights:
            state[name] = weights[name]
        elif name in TABLES and sinusoids:
            place = {"device": torch.device("cpu"), "dtype": torch.float32}
            state[name] = sinusoidal(*tensor.shape, **place)
        else:
            state[name] = torch.zeros(tensor.shape)
    stock.load_state_dict(state, assign=True)
    return stock.eval()


def _stock_maps(layer: Attention, stock: AttentionSpec) -> Maps:
    maps, spec = linear_maps(layer).with_heads(stock.kv_heads), layer.spec
    q, k = maps.q, maps.k
    if not spec.norm.norms:  # a norm would divide by any factor again
        q = q * (spec.score_scale / stock.score_scale)
    if rope := rotary_of(spec):
        q, k = (_in_layout(one, rope, stock.position.layout) for one in (q, k))
    return replace(maps, q=q, k=k)


def _adapt_gains(layer: Attention, spec: AttentionSpec) -> None:
    """Bring the gains of normalised queries and keys into the class's order, and scale."""
    if not spec.norm.norms:
        return
    gains = [next(norm.parameters()) for norm in (layer.q_norm, layer.k_norm)]
    gains[0] *= spec.score_scale / layer.spec.score_scale
    if rope := rotary_of(spec):
        for gain in gains:  # of one head, or of each
            heads = gain.clone().view(-1, 1, spec.head_width)
            gain.copy_(_in_layout(heads, rope, layer.spec.position.layout).view_as(gain))


def _in_layout(part: Tensor, rope: Rope, layout: str) -> Tensor:
    """Return maps [heads, inputs, D] of queries or keys with rotary pairs in a layout.

    Example:
        >>> _in_layout(torch.arange(4.0).view(1, 1, 4), Rope(layout="interleaved"), "half")
        tensor([[[0., 2., 1., 3.]]])
        >>> _in_layout(torch.arange(4.0).view(1, 1, 4), Rope(), "interleaved")
        tensor([[[0., 2., 1., 3.]]])
    """
    if rope.layout == layout:
        return part
    features = rope.features or part.shape[-1]
    pairs = (-1, 2) if layout == "half" else (2, -1)
    order = torch.arange(features).unflatten(0, pairs).T.flatten()
    return torch.cat([part[..., :features][..., order], part[..., features:]], dim=-1)
