"""`export`: a checkpoint as files for other programs, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as serialise
from torch import nn

from suffice.convert.folder import CERTIFICATE, SOURCE
from suffice.convert.sources import Source, open_source, tensors_for
from suffice.errors import CheckpointError, ConfigError, DataError, check_known
from suffice.export.architecture import config_of, stock_model
from suffice.export.card import card
from suffice.export.graph import (
    ONNX_FILE,
    ClassifierGraph,
    DecoderGraph,
    Port,
    call_onnx,
    check_packages,
    graph_module,
    logits_port,
    reach,
    write_onnx,
)
from suffice.export.parity import Parity, check_graph, check_model
from suffice.generate.generate import max_length
from suffice.models import LM
from suffice.models.architectures import hugging_face
from suffice.models.architectures.decoders import GPT2
from suffice.models.architectures.weights import read_json
from suffice.models.vit import ViT
from suffice.runtime import CONTENT, MANIFEST, VERSION, WRITTEN, digest, read
from suffice.text import Tokenizer
from suffice.text.tokenizer import DESCRIPTION, build, template
from suffice.text.tokenizer import read as read_tokenizer
from suffice.utils import hub
from suffice.utils.files import replacing_folder, write_json

CONFIG, GENERATION, WEIGHTS = "config.json", "generation_config.json", "model.safetensors"
README = "README.md"
COMPARING = "comparing what was written with the model"

Step = Callable[[str], None]


@torch.no_grad()
def export(
    source: Path | str,
    form: str,
    out: Path | str,
    *,
    tokenizer: Path | str | None = None,
    licence: str | None = None,
    base_model: str | None = None,
    step: Step = lambda _doing: None,
) -> dict[str, Any]:
    """Write a checkpoint in another format, check it against the model, and return its manifest.

    A certificate in the source's folder comes along.

    Args:
        source: a source of `suffice.convert.sources.open_source`, or a classifier's folder.
        form: "hf" or "onnx".
        out: the folder; an earlier export there is replaced once all is written.
        tokenizer: tokenizer of the source, where its folder has none.
        licence: licence of the weights, such as "apache-2.0"; with it a model card is written.
        base_model: repository of the weights, for the card; None: where they were fetched.
        step: function called with the present stage.

    Raises:
        ConfigError: if the format is unknown, cannot hold the model, or a package is not installed.
        CheckpointError: if the source cannot be read, the folder not written, or the written files
            do not compute the same as the model.
        DataError: if a tokenizer is absent or damaged.
    """
    if form == "gguf":
        raise ConfigError("format 'gguf' is one file; write it with suffice.export.export_gguf.")
    check_known("format", form, WRITTEN)
    if form == "onnx":
        check_packages()
    step(f"reading {source}")
    tokenizer = None if tokenizer is None else Path(tokenizer)
    opened, packed = open_model(Path(source), tokenizer=tokenizer)
    with _replacing(Path(out)) as folder:
        write = _write_hf if form == "hf" else _write_graph
        facts = write(opened, folder, step)
        if opened.tokenizer is not None:
            opened.tokenizer.save(folder)
            if form == "hf":
                _begin_texts(folder, opened.tokenizer)
        certificate = _carry_certificate(hub.local(source), folder)
        manifest = _manifest(opened, form=form, packed=packed, **facts)
        if licence is not None:
            options = {"licence": licence, "base_model": base_model}
            text = card(Path(out).name, manifest, opened.facts, certificate, **options)
            (folder / README).write_text(text, encoding="utf-8", newline="\n")
        manifest["files"] = {
            path.name: {"sha256": digest(path), "bytes": path.stat().st_size}
            for path in sorted(folder.iterdir())
        }
        write_json(folder / MANIFEST, manifest)
        return manifest


def _begin_texts(folder: Path, tokenizer: Tokenizer) -> None:
    if tokenizer.begin is None:
        return
    _, description, begin, _ = read_tokenizer(folder)
    library = build(json.dumps(description), folder)
    if library.encode("").ids[:1] == [tokenizer.begin]:
        return
    former = description.get("post_processor")
    parts = [*filter(None, [former]), template(tokenizer.begin, begin)]
    description["post_processor"] = {"type": "Sequence", "processors": parts}
    write_json(folder / DESCRIPTION, description)


def _carry_certificate(source: Path, folder: Path) -> dict[str, Any] | None:
    path = source / CERTIFICATE
    if not path.is_file():
        return None
    certificate = read_json(path)
    certificate.pop(SOURCE, None)  # a path of this machine
    write_json(folder / CERTIFICATE, certificate)
    return certificate


def open_model(path: Path, *, tokenizer: Path | None = None) -> tuple[Source, bool]:
    """Return the model at a path in float32, and whether its weights were packed."""
    source = open_source(path, tokenizer=tokenizer, packed=False)
    source.model.float().eval().requires_grad_(False)
    return source, bool(source.unpacked)


def _write_hf(source: Source, folder: Path, step: Step) -> dict[str, Any]:
    model, tokenizer = source.model, source.tokenizer
    ends = {} if tokenizer is None else {"begin": tokenizer.begin, "end": tokenizer.end}
    config = config_of(model, **ends) | {"dtype": "float32", "torch_dtype": "float32"}
    write_json(folder / CONFIG, config)
    if isinstance(model, LM):
        ids = {n: config[n] for n in ("bos_token_id", "eos_token_id") if config[n] is not None}
        chosen = source.facts.get("generation") or {"_from_model_config": True}
        write_json(folder / GENERATION, {**chosen, **ids})
    tensors = tensors_for(stock_model(model, config), config)
    (folder / WEIGHTS).write_bytes(serialise(tensors, {"format": "pt"}))
    step(COMPARING)
    parity = check_model(hugging_face.read(folder, config), model)
    return {"parity": parity, "architecture": config["architectures"][0]}


def _write_graph(source: Source, folder: Path, step: Step) -> dict[str, Any]:
    module, path = graph_module(source.model), folder / ONNX_FILE
    step("tracing the model, and translating it to ONNX")
    write_onnx(module, path)
    step(COMPARING)
    parity = check_graph(call_onnx(path), module, source.model)
    return {"parity": parity, "module": module, "graph": path.name}


@contextlib.contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `out` when the block ends well; see `replacing_folder`."""
    _check_replaceable(out)
    try:
        with replacing_folder(out) as folder:
            yield folder
    except (OSError, DataError) as error:
        raise CheckpointError(
            f"cannot write {out} ({getattr(error, 'strerror', None) or error}); free space, or "
            "give another --out. No half-written folder was left."
        ) from error


def _check_replaceable(out: Path) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        strange = {path.name for path in out.iterdir()} - {MANIFEST, *read(out)["files"]}
    except (CheckpointError, OSError):
        strange = {out.name}
    if strange:
        raise ConfigError(
            f"--out {out} exists and holds {sorted(strange)[0]!r:.60}, which no export wrote; give "
            "a folder that is not there yet."
        )


RULE = "begin stands before a text and end behind it; the file adds neither by itself"
RULE_HF = "begin stands before a text, where the file puts it, and end behind it"
RULE_ROWS = (
    "encode a text with the special tokens of the file; where it neither pads nor cuts rows, give "
    "rows of at most `length` tokens"
)
COUNTED = "positions count the real tokens of a row from 0, whatever padding stands among them"
WHOLE = "rows have `length` tokens, whose padding in front is read as any other token"
POSITIONS = {
    "image classifier": "patches are read row by row, behind a class token where the model has one",
    "text classifier": COUNTED,
    "language model": f"{COUNTED}; a state knows where its row ends, so tokens go on from there",
}
HF_POSITIONS = (
    "as the class of transformers counts them: give attention_mask where rows are padded, and "
    "position_ids that count real tokens where padding stands on the left"
)


def _manifest(
    source: Source,
    *,
    form: str,
    packed: bool,
    parity: Parity,
    architecture: str | None = None,
    module: DecoderGraph | ClassifierGraph | None = None,
    graph: str | None = None,
) -> dict[str, Any]:
    model = source.model
    kind = "language model"
    if not isinstance(model, LM):
        kind = "image classifier" if isinstance(model, ViT) else "text classifier"
    stock = form == "hf" and kind != "image classifier"
    whole = kind == "text classifier" and model.config.reads_padding
    rule = RULE_HF if form == "hf" else RULE
    manifest: dict[str, Any] = {
        "content": CONTENT,
        "version": VERSION,
        "format": form,
        "model": kind,
        "source": source.kind,
        "weights": "float32" + (", unpacked from fewer bits" if packed else ""),
        "positions": HF_POSITIONS if stock else WHOLE if whole else POSITIONS[kind],
        "layers": [block.attention.spec.to_json() for block in model.blocks],
        "tokenizer": None,
        "checked": parity.to_json(),
    }
    if source.tokenizer is not None:
        manifest["tokenizer"] = {
            "file": "tokenizer.json",
            "tokens": source.tokenizer.vocabulary_size,
            "begin": source.tokenizer.begin,
            "end": source.tokenizer.end,
            "rule": RULE_ROWS if kind == "text classifier" else rule,
        }
    for name in ("classes", "preparation"):
        if name in source.facts:
            manifest[name] = source.facts[name]
    if architecture is not None:
        manifest["architecture"] = architecture
    if module is not None:
        manifest["graph"] = graph
    inputs, outputs = _stock_ports(model) if module is None else (module.inputs(), module.outputs())
    manifest["inputs"] = [port.to_json() for port in inputs]
    manifest["outputs"] = [port.to_json() for port in outputs]
    if kind == "text classifier":
        manifest["length"] = model.config.length
    if isinstance(model, LM):
        table = architecture == GPT2.class_name  # has a table of positions, whatever the model has
        manifest["length"] = model.config.length if table else max_length(model)
        manifest["reach"] = reach(model)
    return manifest


def _stock_ports(model: nn.Module) -> tuple[list[Port], list[Port]]:
    if isinstance(model, ViT):
        module = graph_module(model)
        return [replace(module.inputs()[0], name="pixel_values")], module.outputs()
    rows = ("batch", "length")
    mask = "1 = a real token, 0 = padding"
    inputs = [
        Port(name="input_ids", dtype="int64", shape=rows, holds="ids"),
        Port(name="attention_mask", dtype="int64", shape=rows, holds=mask),
    ]
    lm = isinstance(model, LM)
    return inputs, [logits_port(model, "length")] if lm else graph_module(model).outputs()
