"""A Llama-like model as llama.cpp's file of weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from suffice.measure.edge.peers import package
from suffice.measure.edge.peers.names import layers
from suffice.models import LM

TYPES = {32: "F32", 16: "F16", 8: "Q8_0", 4: "Q4_0"}
NAMES = {
    **{name: f"attn_{name}" for name in "qkv"},
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "attention_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
}


def write(path: Path, lm: LM, *, bits: int, length: int) -> None:
    """Write the weights; all maps and the embedding are rounded, norms stay as they are.

    Args:
        path: of the file.
        lm: the model.
        bits: of a weight, see `TYPES`.
        length: tokens that the file says the model was made for.

    Raises:
        ConfigError: if gguf is not installed.
    """
    gguf = package("gguf", "gguf")
    config, spec = lm.config, lm.specs[0]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(length)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.depth)
    writer.add_feed_forward_length(config.mlp_width)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_layer_norm_rms_eps(config.eps)
    writer.add_rope_dimension_count(spec.head_width)
    writer.add_rope_freq_base(spec.position.theta)
    writer.add_vocab_size(config.vocabulary_size)
    writer.add_tokenizer_model("no_vocab")
    kind = gguf.GGMLQuantizationType[TYPES[bits]]
    for name, weight in _tensors(lm).items():
        stored = kind if weight.dim() > 1 else gguf.GGMLQuantizationType.F32
        numbers = np.ascontiguousarray(weight.detach().numpy())
        writer.add_tensor(name, gguf.quants.quantize(numbers, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(lm: LM) -> dict[str, Tensor]:
    spec = lm.specs[0]
    found = {
        "token_embd.weight": lm.embedding.tokens.weight,
        "output_norm.weight": lm.norm.weight,
    }
    if lm.head is not None:
        found["output.weight"] = lm.head.weight
    for number, own in enumerate(layers(lm)):
        own["q"] = paired(own["q"], spec.num_heads)
        own["k"] = paired(own["k"], spec.kv_heads)
        found |= {f"blk.{number}.{path}.weight": own[name] for name, path in NAMES.items()}
    return found


def paired(weight: Tensor, heads: int) -> Tensor:
    """Return a map whose features i and i + D / 2 of a head, which turn together, lie together.

    Example:
        >>> import torch
        >>> paired(torch.arange(8.0).view(8, 1), heads=2).flatten().tolist()
        [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]
    """
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
