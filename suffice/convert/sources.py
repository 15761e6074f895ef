"""Opens the model at a path, of this library, transformers or llama2.c, by the files there."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.layers.packed import Packed
from suffice.models import LM, LMConfig, folder
from suffice.models.architectures import hugging_face
from suffice.models.architectures.architecture import ConfigReader
from suffice.models.architectures.encoders import Encoder, from_encoder
from suffice.models.architectures.hugging_face import ARCHITECTURES, tensors_for
from suffice.models.architectures.weights import check_finite
from suffice.models.gguf import unpacked_bytes
from suffice.models.packed import unpack
from suffice.positions import Rope
from suffice.spec import AttentionSpec
from suffice.text import BPE, Tokenizer, llama, load_tokenizer
from suffice.text.tokenizer import chat_template, read_object
from suffice.text.words import words_or_characters
from suffice.utils import hub
from suffice.utils.grammar import format_quantity
from suffice.utils.machine import machine_facts

__all__ = ["ARCHITECTURES", "Encoder", "Source", "from_encoder", "open_source", "tensors_for"]
TOKENIZER, GENERATION = "tokenizer.json", "generation_config.json"
SAMPLING = (
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty"),
    *("max_new_tokens", "no_repeat_ngram_size"),
)
"""Entries of a generation_config.json that come along."""
LLAMA2C_HEADER = struct.Struct("<7i")
LLAMA2C_MAX_SIZE = 1 << 20


DECIMAL = {" B": 1.0, " kB": 1e3, " MB": 1e6, " GB": 1e9}


@dataclass(frozen=True, kw_only=True)
class Source:
    """An opened model, its tokenizer and the metadata in its files."""

    # model in evaluation mode, with Standard attention unless a folder of ours held it
    model: nn.Module
    kind: str  # "suffice", "llama2.c", or the architecture that a config.json of transformers names
    # None for a model that reads no text, or where none was found
    tokenizer: Tokenizer | None = None
    # entries for the config.json of a folder that it is written to
    facts: dict[str, Any] = field(default_factory=dict)
    unpacked: int = 0  # bytes in float32 of a model whose weights were packed and no longer are


def open_source(
    path: Path | str, *, tokenizer: Path | str | None = None, packed: bool = True
) -> Source:
    """Return the model at a path; nothing is unpickled or executed.

    `path` is a folder of `suffice train` or `suffice convert`, one of transformers, a .gguf, a .bin
    of llama2.c, or "hf:ORG/NAME[@REVISION]". Unless `packed`, weights become float32.
    """
    reference, path = path, hub.local(path)
    facts: dict[str, Any] = hub.origin(reference, path)
    unpacked = 0
    if path.is_file() and path.suffix == ".bin" and path.stem != "pytorch_model":
        model, kind = _read_llama2c(path), "llama2.c"
        words = _llama2c_tokenizer(path) if tokenizer is None else None
    elif path.is_file() and path.suffix == ".gguf":
        unpacked = 0 if packed else unpacked_bytes(path)
        check_memory(path, unpacked)
        stored = folder.read(path, dtype=torch.float32 if unpacked else None)
        model, words, facts = stored.model, stored.tokenizer, stored.facts
        kind = facts["source"]
    elif not path.is_dir():
        problem = (
            f"{path} is not a checkpoint" if path.exists() else f"no such file or folder: {path}"
        )
        raise CheckpointError(
            f"{problem}; give a folder of suffice, a folder with config.json and safetensors of "
            "transformers, a .gguf of llama.cpp, or a .bin of llama2.c."
        )
    elif folder.is_ours(config := hugging_face.read_config(path)) or "model_type" not in config:
        stored = folder.read(path)
        model, words, facts = stored.model, stored.tokenizer, stored.facts | facts
        kind = "suffice" if isinstance(model, LM) else stored.kind
        unpacked = 0 if packed else _unpack(model, path)
        check_finite(model.state_dict(), path)
        model.float()
        if not isinstance(model, LM):
            return Source(model=model, kind=kind, tokenizer=words, facts=facts, unpacked=unpacked)
        if words is None and tokenizer is None:
            folder.load(path)  # refuses a language model without a tokenizer
    else:
        model, kind = hugging_face.read(path, config), str(config["model_type"])
        if not isinstance(model, LM):
            return Source(model=model, kind=kind, facts=facts)
        words = _tokenizer_json(path, config) if tokenizer is None else None
        facts |= _facts_beside(path)
    if tokenizer is not None:
        named = Path(tokenizer)
        words = load_tokenizer(named) if named.is_dir() else llama(named)
    size = model.config.vocabulary_size
    if words is not None and words.vocabulary_size > size:
        raise ConfigError(
            f"the tokenizer has {words.vocabulary_size:,} tokens and {path} {size:,}; give the "
            "tokenizer that the model was trained with."
        )
    return Source(model=model, kind=kind, tokenizer=words, facts=facts, unpacked=unpacked)


def in_bytes(size: int) -> str:
    """Return a number of bytes in words, such as "538 MB"."""
    return format_quantity(size, DECIMAL, digits=3)


def check_memory(path: Path, size: int) -> None:
    """Check that the machine holds a model of a size in bytes and another one made of it."""
    memory = machine_facts()["memory_bytes"]
    if memory is not None and 2 * size > memory:
        raise ConfigError(
            f"{path} takes {in_bytes(size)} unpacked, twice that with the model made of it, and "
            f"this machine has {in_bytes(memory)}; use one with more memory."
        )


def _unpack(model: nn.Module, path: Path) -> int:
    """Unpack a model in place; return its bytes, 0 if nothing was packed."""
    packed = [module for module in model.modules() if isinstance(module, Packed)]
    if not packed:
        return 0
    full = sum(parameter.numel() for parameter in model.parameters())
    size = 4 * (full + sum(module.outputs * module.inputs for module in packed))
    check_memory(path, size)
    unpack(model)
    return size


def _read_llama2c(path: Path) -> LM:
    """Return the language model in a file of llama2.c: seven integers, then float32 weights.

    The header holds d_model, MLP width, layers, heads, key/value heads, vocabulary (negative where
    the head has its own weights) and length, little-endian int32. The tensors follow in the order
    of `_llama2c_layout`.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path} ({error.strerror}); check its permissions."
        ) from error
    if len(content) < LLAMA2C_HEADER.size:
        raise CheckpointError(
            f"{path} is truncated ({len(content)} bytes); give a checkpoint of llama2.c."
        )
    width, hidden, depth, heads, kv_heads, vocabulary, length = LLAMA2C_HEADER.unpack_from(content)
    sizes = (width, hidden, depth, heads, kv_heads, abs(vocabulary), length)
    legal = all(1 <= size <= LLAMA2C_MAX_SIZE for size in sizes)
    if not legal or width % heads or heads % kv_heads:
        raise CheckpointError(
            f"{path} begins with {sizes}, which are not sizes of a model; give a checkpoint of "
            "llama2.c of its first format (no version)."
        )
    entries = {
        "vocab_size": abs(vocabulary),
        "max_position_embeddings": length,
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": hidden,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": vocabulary > 0,
    }
    try:
        config, specs = ARCHITECTURES["llama"].sizes(ConfigReader(entries, path))
    except ConfigError as error:
        raise CheckpointError(f"{path} is not a model: {error}") from error
    spec = replace(specs[0], position=Rope(layout="interleaved"))
    layout = _llama2c_layout(config, spec)
    size = LLAMA2C_HEADER.size + 4 * sum(math.prod(shape) for _, shape in layout)
    if len(content) != size:
        raise CheckpointError(
            f"{path} holds {len(content):,} bytes and its sizes ask for {size:,}; give it whole."
        )
    state, offset = {}, LLAMA2C_HEADER.size
    for name, shape in layout:
        count = math.prod(shape)
        numbers = np.frombuffer(content, dtype="<f4", count=count, offset=offset)
        tensor = torch.from_numpy(numbers.astype("f4").reshape(shape))
        offset += 4 * count
        check_finite({name: tensor}, path)
        if "*" in name:
            names = [name.replace("*", str(number)) for number in range(depth)]
            state |= {
                f"{n}.weight": part.contiguous() for n, part in zip(names, tensor, strict=True)
            }
        elif name not in ("cosines", "sines"):  # which are computed
            state[f"{name}.weight"] = tensor
    lm = config.build(spec, device="meta")
    lm.load_state_dict(state, assign=True)
    return lm.eval()


def _llama2c_layout(config: LMConfig, spec: AttentionSpec) -> list[tuple[str, tuple[int, ...]]]:
    """Return our names and the shapes of the tensors in a file; "*" is each block, stacked."""
    depth, width, hidden = config.depth, config.d_model, config.mlp_width
    angles = (config.length, spec.head_width // 2)
    layout = [
        ("embedding.tokens", (config.vocabulary_size, width)),
        ("blocks.*.attention_norm", (depth, width)),
        ("blocks.*.attention.q_proj", (depth, width, width)),
        ("blocks.*.attention.k_proj", (depth, spec.widths.kv, width)),
        ("blocks.*.attention.v_proj", (depth, spec.widths.kv, width)),
        ("blocks.*.attention.o_proj", (depth, width, width)),
        ("blocks.*.mlp_norm", (depth, width)),
        ("blocks.*.mlp.gate", (depth, hidden, width)),
        ("blocks.*.mlp.down", (depth, width, hidden)),
        ("blocks.*.mlp.up", (depth, hidden, width)),
        ("norm", (width,)),
        ("cosines", angles),
        ("sines", angles),
    ]
    return layout if config.tied else [*layout, ("head", (config.vocabulary_size, width))]


def _llama2c_tokenizer(checkpoint: Path) -> Tokenizer | None:
    files = sorted(path for path in checkpoint.parent.glob("tok*.bin") if path != checkpoint)
    if len(files) > 1:
        raise DataError(
            f"several tokenizers are next to {checkpoint}: {', '.join(p.name for p in files[:4])}; "
            "choose one by --tokenizer."
        )
    return llama(files[0]) if files else None


def _facts_beside(folder: Path) -> dict[str, Any]:
    """Return transformers' "generation" settings and "chat_template", as our folders keep them."""
    facts: dict[str, Any] = {}
    if (template := chat_template(folder)) is not None:
        facts["chat_template"] = template
    if (path := folder / GENERATION).is_file():
        entries = hugging_face.read_json(path)
        facts["generation"] = {
            n: v for n, v in entries.items() if n in SAMPLING and type(v) in (int, float, bool)
        }
    return {name: value for name, value in facts.items() if value}


def _tokenizer_json(folder: Path, config: dict[str, Any]) -> Tokenizer | None:
    path = folder / TOKENIZER
    if not path.exists() and not path.is_symlink():  # a broken link is not read as none
        return None
    text, description = read_object(path)
    if (known := words_or_characters(description)) is not None:
        return known
    try:
        tokens = {id_: name for name, id_ in description["model"]["vocab"].items()}
        tokens |= {row["id"]: row["content"] for row in description.get("added_tokens") or ()}
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{TOKENIZER} has no vocabulary of a byte-pair tokenizer ({json.dumps(str(error))})."
        ) from error
    special = {}
    for name, entry in (("begin", "bos_token_id"), ("end", "eos_token_id")):
        id_ = config.get(entry)
        id_ = id_[0] if isinstance(id_, list) and id_ else id_
        if type(id_) is int:
            special[name] = tokens.get(id_)
    return BPE(text, **special, name=path)
