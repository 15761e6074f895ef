"""What the calculator should show of a decoder, from the specs of its layers."""

from __future__ import annotations

from typing import Any

import torch

from suffice.encoders import MLA
from suffice.kernels import Softmax
from suffice.memory import Dynamic, Memory, Quantised, Rolling
from suffice.mixing import NoMixing
from suffice.models.configurations import published
from suffice.patterns import Causal, Window
from suffice.positions import NoPosition, Rope
from suffice.spec import AttentionSpec
from suffice.studio.bundle import ENCODERS, KERNELS, MIXINGS, _read
from suffice.utils.files import parse_json

CALCULATOR = parse_json(_read("calculator.json"))
EMPTY: dict[str, Any] = CALCULATOR["defaults"]
PUBLISHED = {row["title"]: row for row in published() if "title" in row}
FIELDS = {
    name: {type(value).__name__: value for value in values}
    for name, values in (("projections", ENCODERS), ("kernel", KERNELS), ("mixing", MIXINGS))
}


def spec_of(sizes: dict[str, Any], full: bool = False) -> AttentionSpec:
    """Return the spec of a layer, or of a full layer."""
    model = EMPTY | sizes
    mixing = NoMixing()
    if model["mixing_size"] and not full:
        mixing = type(FIELDS["mixing"][model["mixing"]])(model["mixing_size"])
    windowed = model["window"] and not full
    latent = {name: model[name] or None for name in ("value_dim", "query_rank")}
    return AttentionSpec(
        d_model=model["d_model"],
        num_heads=model["num_heads"],
        num_kv_heads=model["num_kv_heads"] or None,
        head_dim=model["head_dim"] or None,
        pattern=Window(model["window"]) & Causal() if windowed else Causal(),
        encoder=MLA(rank=model["rank"], rotary_dim=model["rotary_dim"], **latent)
        if model["projections"] == "MLA"
        else FIELDS["projections"][model["projections"]],
        mixing=mixing,
        kernel=Softmax() if full else FIELDS["kernel"][model["kernel"]],
        position=Rope() if model["rotary"] else NoPosition(),
        bias=model["bias"],
    )


def layers_of(sizes: dict[str, Any]) -> list[bool]:
    """Return whether each layer is a full one."""
    model = EMPTY | sizes
    depth, every, count = model["layers"], model["full_every"], model["full_count"]
    if count:
        return [number >= depth - count for number in range(depth)]
    return [bool(every) and (number + 1) % every == 0 for number in range(depth)]


def layer_bytes(sizes: dict[str, Any], full: bool, length: int) -> int:
    """Return the bytes of one layer's state for one text."""
    model = EMPTY | sizes
    if model["recurrent_numbers"] and not full:
        return 4 * model["recurrent_numbers"]
    memory: Memory = Dynamic()
    if model["window"] and not full:
        memory = Rolling(model["window"], sinks=model["sinks"])
    if model["state_bits"] <= 8:
        memory = Quantised(memory, bits=model["state_bits"])
    dtype = torch.float32 if model["state_bits"] == 32 else torch.float16
    return spec_of(model, full).state_bytes(length, memory, dtype)


def state_bytes(sizes: dict[str, Any], length: int) -> int:
    """Return the bytes of the states of all layers for the batch."""
    each = {full: layer_bytes(sizes, full, length) for full in set(layers_of(sizes))}
    return (EMPTY | sizes)["batch"] * sum(each[full] for full in layers_of(sizes))


def attention_parameters(sizes: dict[str, Any]) -> int:
    """Return the parameters of all layers' attention, gates included."""
    model = EMPTY | sizes
    total = 0
    for full in layers_of(sizes):
        spec = spec_of(model, full)
        gate = model["gate"] * spec.d_model * spec.num_heads * spec.head_width
        recurrent = 0 if full else model["recurrent_parameters"]
        total += recurrent or spec.cost(1).parameters + gate
    return total
