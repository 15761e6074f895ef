"""Checkpoints of llama2.c: a header of seven integers, then float32 weights.

The header holds d_model, MLP width, layers, heads, key/value heads, vocabulary (negative where the
head has its own weights) and length, little-endian int32. The tensors follow in the order of
`_shapes`, each stacked over all layers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from suffice.convert.sources.weights import check_finite
from suffice.errors import CheckpointError, ConfigError
from suffice.models import LM, LMConfig
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.spec import AttentionSpec

HEADER = struct.Struct("<7i")
MAX_SIZE = 1 << 20
NAMES = {
    "attention_norm": "attention_norm",
    "q": "attention.q_proj",
    "k": "attention.k_proj",
    "v": "attention.v_proj",
    "o": "attention.o_proj",
    "mlp_norm": "mlp_norm",
    "gate": "mlp.gate",
    "down": "mlp.down",
    "up": "mlp.up",
}


def read(path: Path) -> LM:
    """Return the language model in a file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path} ({error.strerror}); check its permissions."
        ) from error
    if len(content) < HEADER.size:
        raise CheckpointError(
            f"{path} is truncated ({len(content)} bytes); give a checkpoint of llama2.c."
        )
    width, hidden, depth, heads, kv_heads, vocabulary, length = HEADER.unpack_from(content)
    sizes = (width, hidden, depth, heads, kv_heads, abs(vocabulary), length)
    if not all(1 <= size <= MAX_SIZE for size in sizes) or width % heads or heads % kv_heads:
        raise CheckpointError(
            f"{path} begins with {sizes}, which are no sizes of a model; give a checkpoint of "
            "llama2.c of its first format (no version)."
        )
    config = LMConfig(
        vocabulary_size=abs(vocabulary),
        length=length,
        d_model=width,
        depth=depth,
        mlp_width=hidden,
        activation="swiglu",
        norm="rms",
        positions="none",
        bias=False,
        tied=vocabulary > 0,
    )
    try:
        spec = AttentionSpec(
            d_model=width,
            num_heads=heads,
            num_kv_heads=kv_heads,
            pattern=Causal(),
            position=Rope(layout="interleaved"),
            bias=False,
        )
    except ConfigError as error:
        raise CheckpointError(f"{path} is no model here: {error}") from error
    shapes = list(_shapes(config, spec))
    size = HEADER.size + 4 * sum(math.prod(shape) for _, shape in shapes)
    if len(content) != size:
        raise CheckpointError(
            f"{path} holds {len(content):,} bytes and its sizes ask for {size:,}; give it whole."
        )
    tensors, offset = {}, HEADER.size
    for name, shape in shapes:
        count = math.prod(shape)
        numbers = np.frombuffer(content, dtype="<f4", count=count, offset=offset)
        tensors[name] = torch.from_numpy(numbers.astype("f4").reshape(shape))
        offset += 4 * count
    check_finite(tensors, path)
    lm = config.build(spec, device="meta")
    lm.load_state_dict(_state_dict(tensors), assign=True)
    return lm.eval()


def _shapes(config: LMConfig, spec: AttentionSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    depth, width, hidden = config.depth, config.d_model, config.mlp_width
    yield "tokens", (config.vocabulary_size, width)
    yield "attention_norm", (depth, width)
    yield "q", (depth, width, width)
    yield "k", (depth, spec.widths.kv, width)
    yield "v", (depth, spec.widths.kv, width)
    yield "o", (depth, width, width)
    yield "mlp_norm", (depth, width)
    yield "gate", (depth, hidden, width)
    yield "down", (depth, width, hidden)
    yield "up", (depth, hidden, width)
    yield "norm", (width,)
    yield "cosines", (config.length, spec.head_width // 2)
    yield "sines", (config.length, spec.head_width // 2)
    if not config.tied:
        yield "head", (config.vocabulary_size, width)


def _state_dict(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    state = {"embedding.tokens.weight": tensors["tokens"], "norm.weight": tensors["norm"]}
    if "head" in tensors:
        state["head.weight"] = tensors["head"]
    for theirs, ours in NAMES.items():
        for number, tensor in enumerate(tensors[theirs]):
            state[f"blocks.{number}.{ours}.weight"] = tensor.contiguous()
    return state
