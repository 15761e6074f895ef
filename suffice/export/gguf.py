"""Writes language models as GGUF files, for llama.cpp and the programs around it.

What is written is what a class of transformers would compute (`config_of`, `stock_model`): maps
that are columns become matrices, and rotary pairs come into the architecture's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from suffice.convert.sources import open_source
from suffice.errors import CheckpointError, ConfigError, check_known
from suffice.export.architecture import config_of, stock_model
from suffice.layers.packed import Packed
from suffice.models import LM
from suffice.models.architectures.architecture import GGUF_SIZES, write_sizes
from suffice.models.architectures.layer_types import sliding_window
from suffice.models.architectures.rope import rotary_of
from suffice.models.gguf import (
    FORMS,
    GROUP,
    LLAMA3,
    NO_SINK,
    SINKS,
    STILL,
    SUFFIX,
    TEMPLATE,
    names_of,
    read_gguf,
)
from suffice.models.gguf_format import KINDS, BlockKind, Stored, encode, plain, write_gguf
from suffice.models.packed import unpack
from suffice.ops.native.matrix import Codes
from suffice.positions import Llama3Scaling, NoPosition, Rope
from suffice.positions.rope import plain_frequencies
from suffice.quantise.quantise import round_to_nearest
from suffice.text import Tokenizer
from suffice.text.ggml import vocabulary_entries
from suffice.utils.files import replacing

TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "q4_0": 2}
"""How matrices are stored, and the number of each in general.file_type."""
BITS = {"q8_0": 8, "q4_0": 4}
HALF = 1e-2  # of the largest logit: what rounding to half precision may move
Coding = tuple[Tensor, Tensor]  # codes uint8 [N, K], scales float16 [N, C]
Codings = dict[str, tuple[Tensor, Tensor, Tensor]]  # the same, behind the numbers [N, K]
Named = tuple[str, Stored]


@torch.no_grad()
def write_model(
    path: Path,
    model: LM,
    tokenizer: Tokenizer,
    *,
    kind: str,
    facts: dict[str, Any] | None = None,
    codes: Codings | None = None,
) -> str:
    """Write a language model as a file, and return the architecture that it has there.

    The model is float32 with dense softmax attention throughout. Matrices are stored as `kind` of
    `TYPES` (q8_0 and q4_0: in half precision where inputs are not a multiple of 32), norms and
    biases in full; `codes` of `packed_codes` are kept.
    """
    check_known("type", kind, TYPES)
    if model.config.experts is not None:
        raise ConfigError("mixtures of experts are not written to GGUF; export to hf.")
    config = config_of(model, begin=tokenizer.begin, end=tokenizer.end)
    kv_heads = [spec.kv_heads for spec in model.specs]
    architecture = _architecture(config, kv_heads)
    stock = stock_model(model, config, kv_heads if architecture == "deci" else None)
    metadata = {
        "general.architecture": architecture,
        "general.name": path.stem,
        "general.file_type": TYPES[kind],
        "general.quantization_version": 2,
        **{f"{architecture}.{name}": value for name, value in _sizes(stock, architecture).items()},
        **vocabulary_entries(tokenizer, model.config.vocabulary_size),
    }
    if (rope := _rope(stock)) is not None and type(rope.scaling) is Llama3Scaling:
        one = rope.scaling
        metadata[LLAMA3] = [one.factor, float(one.length), one.low, one.high]
    if facts and isinstance(facts.get("chat_template"), str):
        metadata[TEMPLATE] = facts["chat_template"]
    write_gguf(path, metadata, _tensors(stock, architecture, kind, codes or {}))
    return architecture


def _architecture(config: dict[str, Any], kv_heads: Sequence[int]) -> str:
    kind, windows = config["model_type"], config.get("sliding_window")
    turns = config.get("no_rope_layers", [1])
    usual = [int((number + 1) % 4 != 0) for number in range(len(turns))]
    if kind in ("mistral", "smollm3") and (windows or (any(turns) and turns != usual)):
        architecture = "granite_swa"
    elif windows and kind in FORMS:  # the class of phi3 there reads past them
        raise ConfigError(
            f"llama.cpp's {kind} computes no windows, and this model has windows of {windows} "
            "tokens; export to hf or onnx."
        )
    elif kind == "llama" or not any(turns):
        architecture = "deci" if len(set(kv_heads)) > 1 else "llama"
    else:
        architecture = kind
    if architecture not in FORMS:
        raise ConfigError(f"llama.cpp's {kind} is not written; export to hf or onnx.")
    _check_form(config, architecture)
    return architecture


def _check_form(config: dict[str, Any], architecture: str) -> None:
    kind = config["model_type"]
    if config.get("use_parallel_residual"):
        raise ConfigError("parallel residuals are not written to GGUF; export to hf or onnx.")
    wide = config.get("head_dim", 0) * config.get("num_attention_heads", 0)
    if kind == "olmo2" and (config["attention_bias"] or wide != config["hidden_size"]):
        raise ConfigError(
            "llama.cpp's olmo2 has no biases, and heads that divide the model's width; export to "
            "hf."
        )
    if config.get("qk_layernorm"):
        raise ConfigError("layer norms of queries and keys are not written to GGUF; export to hf.")
    scaling = (config.get("rope_parameters") or {}).get("rope_type", "default")
    if scaling not in ("default", "linear", "llama3"):
        raise ConfigError(
            f"rotary scaling {scaling!r} is not written to GGUF; default, linear, llama3."
        )
    if kind == "gpt2" and config["activation_function"] == "relu":
        raise ConfigError("llama.cpp's gpt2 computes GELU, and this model ReLU; export to hf.")
    if config.get("mlp_bias") and architecture == "llama":
        raise ConfigError("llama.cpp's llama has no biases in its MLPs that are read everywhere.")


def _sizes(stock: LM, architecture: str) -> dict[str, Any]:
    config, spec, depth = stock.config, stock.specs[0], stock.config.depth
    kv_heads = [each.kv_heads for each in stock.specs]
    rms = config.norm == "rms"
    sizes: dict[str, Any] = {
        **write_sizes(config, GGUF_SIZES),
        "attention.head_count": spec.num_heads,
        "attention.head_count_kv": kv_heads if len(set(kv_heads)) > 1 else spec.kv_heads,
        "attention.key_length": spec.head_width,
        "attention.value_length": spec.head_width,
        f"attention.layer_norm_{'rms_' if rms else ''}epsilon": float(config.eps),
        "vocab_size": config.vocabulary_size,
    }
    if architecture == "stablelm":
        sizes["use_parallel_residual"] = False
    if FORMS[architecture][0].by_layer:
        windows = [sliding_window(each) for each in stock.specs]
        windowed = [size is not None for size in windows]
        # a window as long as any text is none; llama.cpp wants one layer to have one
        sizes["attention.sliding_window"] = max(filter(None, windows), default=config.length)
        sizes["attention.sliding_window_pattern"] = windowed if any(windowed) else [True] * depth
        turns = [each.position != NoPosition() for each in stock.specs]
        sizes["attention.rope_pattern"] = turns if any(turns) else [True] * depth
        sizes["logit_scale"] = 1.0
    rope = _rope(stock)
    if rope is None:
        return sizes
    sizes["rope.dimension_count"] = rope.features or spec.head_width
    sizes["rope.freq_base"] = float(rope.theta)
    if rope.scaling is not None and type(rope.scaling) is not Llama3Scaling:
        sizes |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope.scaling.factor)}
    return sizes


def packed_codes(model: LM, kind: str) -> Codings:
    """Return numbers, codes and scales of packed matrices that a kind can hold as they are."""
    found = {}
    for name, module in model.named_modules():
        scheme = module.scheme if isinstance(module, Packed) else None
        if scheme is None or scheme.bits != BITS.get(kind) or scheme.group % GROUP:
            continue
        matrix = Codes(
            bits=scheme.bits,
            shape=(module.outputs, module.inputs),
            group=scheme.group,
            codes=module.codes,
            scales=module.scales,
        )
        codes, scales = rows_of(matrix)
        found[name] = (
            module.dequantised(),
            codes,
            scales.repeat_interleave(scheme.group // GROUP, 1),
        )
    return found


def rows_of(matrix: Codes) -> tuple[Tensor, Tensor]:
    """Return the codes uint8 [N, K] and the scales float16 [N, C] of a packed matrix."""
    pieces = matrix.codes.view(*matrix.codes.shape[:2], 16, 4)
    if matrix.bits == 4:  # noqa: PLR2004
        pieces = torch.cat([pieces & 15, pieces >> 4], dim=-1)
    codes = pieces.transpose(1, 2).flatten(2).flatten(0, 1)
    scales = matrix.scales.transpose(1, 2).flatten(0, 1)
    return codes[: matrix.shape[0]], scales[: matrix.shape[0]]


def _tensors(stock: LM, architecture: str, kind: str, codes: Codings) -> Iterator[Named]:
    form, state = FORMS[architecture][0], stock.state_dict()
    for theirs, ours in names_of(form, stock).items():
        orders = [_order(one, stock, form.layout) for one in ours]
        parts = [state[f"{one}.weight"] for one in ours]
        in_full = parts[0].dim() == 1 or "position" in theirs
        if in_full or kind not in BITS or parts[0].shape[-1] % GROUP:
            rows = torch.cat([part[order] for part, order in zip(parts, orders, strict=True)])
            name = "F32" if in_full or kind == "f32" else "F16"  # also rows of no whole groups
            yield f"{theirs}.weight", _plain(rows, name)
        else:
            kept = [_same(codes.get(one), part) for one, part in zip(ours, parts, strict=True)]
            coded = [
                one or _rounded(part, BITS[kind]) for one, part in zip(kept, parts, strict=True)
            ]
            yield f"{theirs}.weight", _coded(coded, orders, KINDS[kind.upper()])
        if f"{ours[0]}.bias" in state:
            biases = [state[f"{one}.bias"] for one in ours]
            bias = torch.cat([one[order] for one, order in zip(biases, orders, strict=True)])
            # a bias that is zero may be one that the architecture has not
            if bool(bias.any()) or "norm" in theirs or architecture == "gpt2":
                yield f"{theirs}.bias", _plain(bias, "F32")
    if form.by_layer:
        for layer, spec in enumerate(stock.specs):
            yield f"blk.{layer}.{SINKS}", _plain(torch.full((spec.num_heads,), NO_SINK), "F32")
    if form.untied and stock.head is None:
        yield (
            "output.weight",
            _plain(state["embedding.tokens.weight"], "F16" if kind != "f32" else "F32"),
        )
    rope = _rope(stock)
    if rope is None and form.layout:  # llama.cpp always turns them
        yield (
            "rope_freqs.weight",
            _plain(torch.full((stock.specs[0].head_width // 2,), STILL), "F32"),
        )
    elif rope is not None and type(rope.scaling) is Llama3Scaling:
        features = rope.features or stock.specs[0].head_width
        unscaled = plain_frequencies(rope.theta, features)
        factors = unscaled / rope.scaling.frequencies(rope.theta, features)
        yield "rope_freqs.weight", _plain(factors.float(), "F32")


def _rope(stock: LM) -> Rope | None:
    ropes = map(rotary_of, stock.specs)
    return next((one for one in ropes if one is not None), None)


def _plain(rows: Tensor, name: str) -> Stored:
    blocks = plain(KINDS[name], rows.reshape(-1, rows.shape[-1]).numpy())
    return Stored(shape=tuple(rows.shape), kind=KINDS[name], blocks=blocks)


def _coded(parts: Sequence[Coding], orders: Sequence[Tensor | slice], kind: BlockKind) -> Stored:
    codes, scales = (
        torch.cat([part[n][order] for part, order in zip(parts, orders, strict=True)])
        for n in (0, 1)
    )
    blocks = encode(kind, codes.numpy(), scales.numpy())
    return Stored(shape=tuple(codes.shape), kind=kind, blocks=blocks)


def _order(name: str, stock: LM, layout: str) -> Tensor | slice:
    block, _, part = name.rpartition(".attention.")
    if layout != "interleaved" or part not in ("q_proj", "k_proj"):
        return slice(None)
    spec = stock.specs[int(block.removeprefix("blocks."))]
    heads = spec.num_heads if part == "q_proj" else spec.kv_heads
    rope = rotary_of(spec)
    if rope is None:
        return slice(None)
    features = rope.features or spec.head_width
    pairs = torch.arange(features).unflatten(0, (2, -1)).T.flatten()
    within = torch.cat([pairs, torch.arange(features, spec.head_width)])
    return (torch.arange(heads)[:, None] * spec.head_width + within).flatten()


def _same(packed: tuple[Tensor, Tensor, Tensor] | None, weight: Tensor) -> Coding | None:
    if packed is None or packed[0].shape != weight.shape or not torch.equal(packed[0], weight):
        return None
    return packed[1:]


def _rounded(weight: Tensor, bits: int) -> Coding:
    codes, scales = round_to_nearest(weight, bits, GROUP)
    return codes.to(torch.uint8), scales


@torch.no_grad()
def export_gguf(
    source: Path | str,
    out: Path | str,
    *,
    kind: str = "f16",
    tokenizer: Path | str | None = None,
) -> dict[str, Any]:
    """Write a checkpoint as a file for llama.cpp, read it back, and return what was written.

    Args:
        source: a language model that `suffice.convert.sources.open_source` opens.
        out: the file; an earlier .gguf there is replaced.
        kind: storage of matrices, one of `TYPES`.
        tokenizer: tokenizer of the source, where its folder has none.

    Returns:
        "architecture", "type", "file", "bytes", and "difference": the largest of a logit between
        the model and the file read back, which for 8 and 4 bits is that of rounding.
    """
    source, out = Path(source), Path(out)
    if out.suffix != SUFFIX or out.is_dir():
        raise ConfigError(f"--out {out}: give the name of a file that ends in {SUFFIX}.")
    opened = open_source(source, tokenizer=tokenizer)
    if not isinstance(opened.model, LM) or opened.tokenizer is None:
        raise ConfigError(
            f"{source} is not a language model with a tokenizer, and a .gguf holds both; name the "
            "tokenizer by --tokenizer, or export to onnx."
        )
    model = open_source(source, tokenizer=tokenizer, packed=False).model.float().eval()
    codes = packed_codes(opened.model, kind)
    with replacing(out) as temporary:
        architecture = write_model(
            temporary, model, opened.tokenizer, kind=kind, facts=opened.facts, codes=codes
        )
        written, _, _ = read_gguf(temporary)
        difference = _difference(written, model, exact=kind in ("f32", "f16"))
    return {
        "architecture": architecture,
        "type": kind,
        "file": str(out),
        "bytes": out.stat().st_size,
        "difference": difference,
    }


def _difference(written: LM, model: LM, *, exact: bool) -> float:
    """Return the largest difference of a logit; refuse what rounding cannot explain."""
    unpack(written)
    draws = torch.Generator().manual_seed(0)
    tokens = torch.randint(
        model.config.vocabulary_size, (2, min(64, model.config.length)), generator=draws
    )
    wanted = model(tokens)
    found = float((written(tokens) - wanted).abs().max())
    if exact and not found <= HALF * max(1.0, float(wanted.abs().max())):
        raise CheckpointError(
            f"the file does not compute the same as the model: logits differ by {found:.1e}; "
            "nothing was kept; export it to hf or onnx."
        )
    return found
