"""Language models in GGUF files: sizes from the metadata, weights as they are stored.

Matrices in F16, Q8_0, Q4_0 and Q5_0 keep their very numbers and stay packed; other kinds of blocks
are decoded and held in 8 bits, which `facts["repacked"]` tells. Unpacked to float32, no kind is
rounded. Nothing in a file is executed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from suffice.errors import CheckpointError, ConfigError
from suffice.layers.packed import PackedEmbedding, PackedLinear
from suffice.models.architectures.architecture import (
    GGUF_SIZES,
    Architecture,
    ConfigReader,
    GGUFForm,
)
from suffice.models.architectures.hugging_face import READ
from suffice.models.gguf_format import GGUF, BlockKind, codes_of, decode, open_gguf
from suffice.models.gguf_format import Tensor as Stored
from suffice.models.lm import LM
from suffice.models.packed import replace_module
from suffice.ops.native.matrix import Codes, in_panels
from suffice.patterns import Causal, Window
from suffice.positions import LinearScaling, Llama3Scaling, NoPosition, Position, Rope
from suffice.positions.rope import Scaling, plain_frequencies
from suffice.spec import AttentionSpec
from suffice.text import Tokenizer
from suffice.text.ggml import read_vocabulary

SUFFIX = ".gguf"
TEMPLATE = "tokenizer.chat_template"
LLAMA3 = "suffice.rope.llama3"  # factor, length, low and high of a Llama3Scaling
LARGEST_SIZE = 1 << 24
GROUP = 32  # inputs with one scale in the packed kinds


FORMS: dict[str, tuple[GGUFForm, Architecture]] = {
    form.name: (form, architecture) for architecture in READ for form in architecture.gguf
}
"""The architectures that are read and written, by their names in llama.cpp."""
Row = tuple[str, tuple[str, ...]]
"""A tensor in a file and our modules whose rows it holds; "*" is the number of a block."""
ROWS: tuple[Row, ...] = (
    ("token_embd", ("embedding.tokens",)),
    ("output_norm", ("norm",)),
    ("position_embd", ("embedding.positions",)),
    ("output", ("head",)),
    ("blk.*.attn_norm", ("blocks.*.attention_norm",)),
    ("blk.*.ffn_norm", ("blocks.*.mlp_norm",)),
    ("blk.*.post_attention_norm", ("blocks.*.attention_out_norm",)),
    ("blk.*.post_ffw_norm", ("blocks.*.mlp_out_norm",)),
    ("blk.*.attn_output", ("blocks.*.attention.o_proj",)),
    ("blk.*.ffn_down", ("blocks.*.mlp.down",)),
    *((f"blk.*.attn_{n}_norm", (f"blocks.*.attention.{n}_norm",)) for n in "qk"),
    *((f"blk.*.attn_{n}_norm", (f"blocks.*.attention.{n}_norm.norm",)) for n in "qk"),
)
QKV = tuple(f"blocks.*.attention.{name}_proj" for name in "qkv")
GATED = ("blocks.*.mlp.gate", "blocks.*.mlp.up")
APART: tuple[Row, ...] = (
    *((f"blk.*.attn_{name}", (ours,)) for name, ours in zip("qkv", QKV, strict=True)),
    ("blk.*.ffn_gate", GATED[:1]),
    ("blk.*.ffn_up", GATED[1:]),
)
SINKS = "attn_sinks.weight"
NO_SINK = -1e30  # a logit whose share is none
STILL = 1e30  # a factor of rotary frequencies that leaves every token unturned
PLAIN_SCALES = ("logit_scale", "residual_scale", "embedding_scale")


def names_of(form: GGUFForm, lm: LM) -> dict[str, tuple[str, ...]]:
    """Return the tensors of a model without ".weight" and ".bias", and the modules they hold."""
    state, names = lm.state_dict(), {}
    first = GATED if "blocks.0.mlp.gate.weight" in state else GATED[1:]
    fused = (("blk.*.attn_qkv", QKV), ("blk.*.ffn_up", first))
    for theirs, ours in (*ROWS, *(fused if form.fused else APART)):
        for number in range(lm.config.depth if "*" in theirs else 1):
            modules = tuple(module.replace("*", str(number)) for module in ours)
            if f"{modules[0]}.weight" in state:
                names[theirs.replace("*", str(number))] = modules
    return names


@torch.no_grad()
def read_gguf(path: Path | str, *, packed: bool = True) -> tuple[LM, Tokenizer, dict[str, Any]]:
    """Return the language model of a file of one of `FORMS`, its tokenizer and facts about it.

    Without `packed` all weights become float32. Facts are "source", "chat_template" if there is
    one, and "repacked", the relative error of weights by kind, for kinds held in 8 bits.
    """
    file = open_gguf(path)
    reader = _Metadata(file)
    lm = _build(reader)
    repacked = _fill(lm, file, names_of(reader.form, lm), packed=packed)
    _check_finite(lm, file.path)
    tokenizer = read_vocabulary(file.metadata, file.path)
    if tokenizer.vocabulary_size > lm.config.vocabulary_size:
        raise CheckpointError(
            f"{path} has {tokenizer.vocabulary_size:,} tokens and an embedding of "
            f"{lm.config.vocabulary_size:,}; download it again."
        )
    facts: dict[str, Any] = {"source": f"gguf {reader.architecture}"}
    if isinstance(file.metadata.get(TEMPLATE), str):
        facts["chat_template"] = file.metadata[TEMPLATE]
    if repacked:
        facts["repacked"] = repacked
    return lm.eval(), tokenizer, facts


def unpacked_bytes(path: Path | str) -> int:
    """Return the bytes that the tensors of a file take in float32; 0 if none of them is packed."""
    tensors = open_gguf(path).tensors
    packed = any(not _in_full(one, name) for name, one in tensors.items())
    return 4 * sum(math.prod(one.shape) for one in tensors.values()) if packed else 0


class _Metadata:
    """The sizes in a file's metadata, checked."""

    def __init__(self, file: GGUF) -> None:
        self.file, self.where = file, file.path
        self.architecture = file.metadata.get("general.architecture")
        if not isinstance(self.architecture, str) or self.architecture not in FORMS:
            raise ConfigError(
                f"{self.where}: the architecture {self.architecture!r:.40} is not read; legal: "
                f"{', '.join(FORMS)}."
            )
        self.form, self.stock = FORMS[self.architecture]
        if self.get("expert_count", 0):
            raise ConfigError(f"{self.where} is a mixture of experts, which is not read.")
        if self.get("use_parallel_residual", default=False):
            raise ConfigError(f"{self.where} has parallel residuals, which are not read.")
        if self.architecture == "olmo2" and self.get("attention.sliding_window", 0):
            raise ConfigError(
                f"{self.where} has windows with OLMo 2's norms, as OLMo 3 has; not read."
            )
        scales = {name: self.get(name, 1.0) for name in PLAIN_SCALES}
        scales["attention.scale"] = self.get("attention.scale", 0.0) + 1.0
        if odd := [name for name, value in scales.items() if value != 1.0]:
            raise ConfigError(f"{self.where} has {' and '.join(odd)}, which are not read.")

    def get(self, name: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self.architecture}.{name}", default)

    def size(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if isinstance(value, list):  # one for each layer
            if not value or len(set(value)) > 1:
                raise ConfigError(f"{self.where}: {name} differs by layer, which is not read.")
            value = value[0]
        if type(value) is not int or not 1 <= value <= LARGEST_SIZE:
            raise CheckpointError(f"{self.where}: {name} is {value!r:.40}; download it again.")
        return value

    def by_layer(self, name: str, depth: int, default: int, least: int = 1) -> list[int]:
        """Return a size of each layer, which the file gives once or for each."""
        value = self.get(name, default)
        sizes = value if isinstance(value, list) else [value] * depth
        wrong = [one for one in sizes if type(one) is not int or not least <= one <= LARGEST_SIZE]
        if wrong or len(sizes) != depth:
            raise CheckpointError(
                f"{self.where}: {name} is {value!r:.40} for {depth} layers; download it again."
            )
        return sizes

    def flags(self, name: str, depth: int) -> list[bool]:
        value = self.get(name)
        if not isinstance(value, list) or len(value) != depth or not set(value) <= {0, 1}:
            raise CheckpointError(f"{self.where}: {name} is {value!r:.40}; download it again.")
        return [bool(one) for one in value]

    def windows(self, depth: int) -> list[int]:
        """Return how many tokens each layer reads; 0 = all before."""
        if not (self.form.windowed or self.form.by_layer):
            return [0] * depth
        sizes = self.by_layer("attention.sliding_window", depth, default=0, least=0)
        flags = [True] * depth
        if self.form.by_layer:
            flags = self.flags("attention.sliding_window_pattern", depth)
        longest = self.size("context_length")
        return [
            size if flag and size < longest else 0 for size, flag in zip(sizes, flags, strict=True)
        ]

    def number(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            raise CheckpointError(f"{self.where}: {name} is {value!r:.40}; download it again.")
        return float(value)

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors


def _build(reader: _Metadata) -> LM:
    """Return the model that the entries of a config.json with a file's metadata would make."""
    sizes = {ours: reader.size(theirs) for theirs, ours in GGUF_SIZES.items()}
    heads, depth = reader.size("attention.head_count"), sizes["depth"]
    if not reader.has("token_embd.weight"):
        raise CheckpointError(f"{reader.where} has no token_embd.weight; download it again.")
    sizes["vocabulary_size"] = reader.file.tensors["token_embd.weight"].shape[0]
    head_dim = reader.size("attention.key_length", max(1, sizes["d_model"] // heads))
    if reader.size("attention.value_length", head_dim) != head_dim:
        raise ConfigError(f"{reader.where}: values are not as wide as keys, which is not read.")
    names = (f"attention.layer_norm_{kind}epsilon" for kind in ("rms_", ""))
    eps = reader.number(next((n for n in names if reader.get(n) is not None), ""), 1e-5)
    biased = any(reader.has(f"blk.0.{name}.bias") for name in ("attn_q", "attn_qkv", "attn_output"))
    entries = {theirs: sizes[ours] for theirs, ours in reader.stock.size_names.items()} | {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "n_head": heads,
        "head_dim": head_dim,
        "rms_norm_eps": eps,
        "layer_norm_eps": eps,
        "layer_norm_epsilon": eps,
        "attention_bias": biased,
        "use_qkv_bias": biased,
        "mlp_bias": reader.has("blk.0.ffn_down.bias"),
        "tie_word_embeddings": not reader.has("output.weight"),
    }
    config, specs = reader.stock.sizes(ConfigReader(entries, reader.where))
    specs = [specs] * depth if isinstance(specs, AttentionSpec) else specs
    turning = [spec.position != NoPosition() for spec in specs]
    if reader.form.by_layer and reader.get("attention.rope_pattern") is not None:
        turning = reader.flags("attention.rope_pattern", depth)
    rope = _rope(reader, head_dim) if reader.form.layout else NoPosition()
    windows = reader.windows(depth)
    kv_heads = reader.by_layer("attention.head_count_kv", depth, default=heads)
    layers = [
        replace(
            spec,
            num_kv_heads=kv_heads[n],
            pattern=Window(windows[n]) & Causal() if windows[n] else Causal(),
            position=rope if turning[n] else NoPosition(),
        )
        for n, spec in enumerate(specs)
    ]
    return config.build(layers, device="meta")


def _rope(reader: _Metadata, head_dim: int) -> Position:
    theta = reader.number("rope.freq_base", 10_000.0)
    features = reader.size("rope.dimension_count", head_dim)
    kind = reader.get("rope.scaling.type", "none")
    scaling: Scaling | None = None
    if reader.has("rope_freqs.weight"):
        factors = _decoded(reader.file, "rope_freqs.weight").flatten().double()
        if bool((factors > STILL / 2).all()):
            return NoPosition()
        scaling = _llama3(reader, factors, theta, features)
    elif kind == "linear":
        scaling = LinearScaling(reader.number("rope.scaling.factor", 1.0))
    elif kind != "none":
        raise ConfigError(f"{reader.where}: rotary scaling {kind!r:.40} is not read; linear is.")
    return Rope(
        theta,
        layout=reader.form.layout,
        features=None if features == head_dim else features,
        scaling=scaling,
    )


def _llama3(reader: _Metadata, factors: Tensor, theta: float, features: int) -> Llama3Scaling:
    """Return the scaling of Llama 3.1 and 3.2, of which files hold the factors alone."""
    file = reader.file
    plain = plain_frequencies(theta, features)
    published = [(8.0, 8192, 1.0, 4.0), (32.0, 8192, 1.0, 4.0)]
    own = file.metadata.get(LLAMA3)  # of other lengths, in files that we wrote
    known = [tuple(own)] if isinstance(own, list) and len(own) == len(published[0]) else published
    for factor, length, low, high in known:
        scaling = Llama3Scaling(factor, length=int(length), low=low, high=high)
        if factors.shape == plain.shape and torch.allclose(
            plain / scaling.frequencies(theta, features), factors, rtol=1e-4
        ):
            return scaling
    raise ConfigError(
        f"{reader.where} stretches rotary frequencies in another way than Llama 3, which is not "
        "read."
    )


def _fill(
    lm: LM, file: GGUF, names: Mapping[str, tuple[str, ...]], *, packed: bool
) -> dict[str, float]:
    """Put the tensors of a file into a model on "meta"; return the errors of repacked kinds."""
    state = lm.state_dict()
    expected = {
        f"{theirs}.{part}": {f"{module}.{part}": state[f"{module}.{part}"].shape for module in ours}
        for theirs, ours in names.items()
        for part in ("bias", "weight")
        if f"{ours[0]}.{part}" in state
    }
    sinks = {name for name in file.tensors if name.endswith(SINKS)}
    if any(bool((_decoded(file, name) > NO_SINK / 2).any()) for name in sinks):
        raise ConfigError(f"{file.path} has attention sinks, which are not read.")
    for name in set(file.tensors) - sinks - {"rope_freqs.weight", *expected}:
        raise CheckpointError(f"{file.path} holds {name!r:.60}, which its architecture has not.")
    loaded: dict[str, Tensor] = {}
    matrices: dict[str, dict[str, torch.Size]] = {}
    for name, shapes in expected.items():
        if name not in file.tensors and name.endswith(".bias"):  # ours is zero, they have none
            loaded |= {one: torch.zeros(shape) for one, shape in shapes.items()}
        elif name not in file.tensors:
            raise CheckpointError(f"{file.path} lacks the tensor {name!r:.60}; download it again.")
        elif not packed or _in_full(file.tensors[name], name):
            loaded |= _numbers(file, name, shapes)
        else:
            matrices[name] = shapes
    errors: dict[str, float] = {}
    for name, shapes in matrices.items():
        kind = file.tensors[name].kind.name
        for one, (matrix, error) in _packed(file, name, shapes).items():
            module = one.removesuffix(".weight")
            old, bias = lm.get_submodule(module), loaded.pop(f"{module}.bias", None)
            packing = PackedEmbedding if isinstance(old, nn.Embedding) else PackedLinear
            replace_module(lm, module, packing.of(matrix, bias))
            if error:
                errors[kind] = max(errors.get(kind, 0.0), error)
    lm.load_state_dict(loaded, strict=False, assign=True)
    return errors


def _check_finite(lm: LM, path: Path) -> None:
    for name, tensor in lm.state_dict().items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{path} holds NaN or infinity in {name!r:.60}.")


def _in_full(tensor: Stored, name: str) -> bool:
    return len(tensor.shape) == 1 or tensor.kind.name in ("F32", "BF16") or "position" in name


def _check(file: GGUF, name: str, shapes: Mapping[str, torch.Size]) -> None:
    first = next(iter(shapes.values()))
    expected = (sum(shape[0] for shape in shapes.values()), *first[1:])
    if file.tensors[name].shape != expected:
        raise CheckpointError(
            f"{file.path}: {name!r:.60} has the shape {list(file.tensors[name].shape)}, and its "
            f"metadata ask for {list(expected)}."
        )


def _decoded(file: GGUF, name: str) -> Tensor:
    one = file.tensors[name]
    return torch.from_numpy(np.array(decode(one.kind, file.blocks(name)))).view(one.shape)


def _numbers(file: GGUF, name: str, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Return float32 tensors of the rows of one in a file."""
    _check(file, name, shapes)
    parts = _decoded(file, name).split([shape[0] for shape in shapes.values()])
    return {name: part.clone() for name, part in zip(shapes, parts, strict=True)}


def _packed(
    file: GGUF, name: str, shapes: Mapping[str, torch.Size]
) -> dict[str, tuple[Codes | Tensor, float]]:
    """Return the parts of a matrix as codes or half precision, with the error of repacking."""
    _check(file, name, shapes)
    kind, blocks = file.tensors[name].kind, file.blocks(name)
    parts: dict[str, tuple[Codes | Tensor, float]] = {}
    first = 0
    for one, shape in shapes.items():
        rows = blocks[first : first + shape[0]]
        first += shape[0]
        if kind.name == "F16":
            halves = np.ascontiguousarray(rows).view("<f2")
            parts[one] = torch.from_numpy(halves.copy()), 0.0
        else:
            parts[one] = _codes(kind, rows)
    return parts


def _codes(kind: BlockKind, blocks: np.ndarray) -> tuple[Codes, float]:
    """Return rows as codes with scales for each 32, and the relative error if that rounds."""
    if kind.zero is None:
        numbers = decode(kind, blocks)
        codes, scales = nearest(numbers)
        held = (codes.astype(np.float32) - 128) * np.repeat(scales.astype(np.float32), GROUP, 1)
        error = float(np.linalg.norm(held - numbers) / max(np.linalg.norm(numbers), 1e-30))
    else:
        codes, scales = codes_of(kind, blocks)
        error = 0.0
    bits = 4 if kind.name == "Q4_0" else 8
    return in_panels(*(torch.from_numpy(np.array(one)) for one in (codes, scales)), bits), error


def nearest(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return codes [R, K] of 8 bits and scales [R, C] of the nearest numbers in groups of 32."""
    groups = numbers.reshape(len(numbers), -1, GROUP)
    with np.errstate(over="ignore", invalid="ignore"):  # scales that are not finite are refused
        scales = (np.abs(groups).max(-1) / 127).astype(np.float16)
        factor = np.where(scales > 0, scales, 1).astype(np.float32)[..., None]
        codes = np.clip(np.rint(groups / factor), -127, 127) + 128
        return codes.astype(np.uint8).reshape(numbers.shape), scales
