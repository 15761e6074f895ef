"""`export`: a checkpoint as files that other programs run, whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as serialise
from torch import nn

from suffice.convert.folder import classifier_kind, load_classifier
from suffice.convert.sources import Source, hugging_face, open_source, tensors_for
from suffice.convert.sources.decoders import GPT2
from suffice.errors import CheckpointError, ConfigError, DataError, unknown
from suffice.export import formats
from suffice.export.architecture import config_of, described
from suffice.export.graph import Decoder, Port, Whole, reach
from suffice.export.parity import CLOSE, Checked, check
from suffice.files import sync_folder
from suffice.generate.generate import max_length
from suffice.models import LM
from suffice.models.packed import schemes_of, unpack
from suffice.models.vit import ViT
from suffice.runtime.manifest import CONTENT, FORMATS, MANIFEST, VERSION, digest, read


def opened(path: Path, *, tokenizer: Path | None = None) -> tuple[Source, bool]:
    """Return the model at a path in float32, and whether its weights had been packed.

    Raises:
        CheckpointError: if there is no such model, or its files do not fit each other.
        ConfigError: if the model has something that no model here has.
        DataError: if a tokenizer is absent or damaged.
    """
    if classifier_kind(path):
        source = load_classifier(path)
    else:
        source = open_source(path, tokenizer=tokenizer)
    model = source.model
    packed = bool(schemes_of(model))
    unpack(model)
    model.float().eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return source, packed


@contextlib.contextmanager
def writing(out: Path) -> Iterator[Path]:
    """Give an empty folder to write into; it becomes `out` when the block ends well.

    An error in the block leaves `out` as it was.

    Args:
        out: absent, empty, or an export, which is replaced.

    Raises:
        CheckpointError: if the disk refuses.
        ConfigError: if `out` holds something else.
    """
    _check(out)
    beside = out.parent / f".{out.name}.{os.getpid()}.part"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _sweep(out)
        beside.mkdir()
        yield beside
        _sync(beside)
        _replace(beside, out)
    except (OSError, DataError) as error:
        raise CheckpointError(
            f"cannot write {out} ({getattr(error, 'strerror', None) or error}); free space, or "
            "give another --out. No half-written folder was left."
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _check(out: Path) -> None:
    """Refuse to replace what no export wrote."""
    if not out.exists():
        return
    if out.is_dir() and not any(out.iterdir()):
        return
    try:
        told = read(out)
        strange = {path.name for path in out.iterdir()} - {MANIFEST, *told["files"]}
    except (CheckpointError, OSError):
        strange = {out.name}
    if strange:
        raise ConfigError(
            f"--out {out} exists and holds {sorted(strange)[0]!r:.60}, which no export wrote; give "
            "a folder that is not there yet."
        )


def _sweep(out: Path) -> None:
    """Remove what a killed export left beside its folder."""
    left = re.compile(rf"\.{re.escape(out.name)}\.\d+\.part")
    for path in out.parent.iterdir():
        if left.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb+") as written:
            os.fsync(written.fileno())
    sync_folder(folder)


def _replace(new: Path, out: Path) -> None:
    """Put a folder in the place of another; for a moment there is neither, never half of one."""
    old = out.parent / f".{out.name}.{os.getpid()}.old"
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    try:
        new.rename(out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)
    sync_folder(out.parent)


RULE = (
    "positions count the real tokens of a row from 0, whatever padding stands among them; a state "
    "knows where its row ends, so tokens go on from there"
)
WHOLE = "positions count the real tokens of a row from 0, whatever padding stands among them"
ROWS = "patches are read row by row, behind a class token where the model has one"


def manifest_of(
    folder: Path,
    source: Source,
    *,
    form: str,
    packed: bool,
    checked: Checked,
    architecture: str | None = None,
    module: Decoder | Whole | None = None,
    graph: str | None = None,
) -> dict[str, Any]:
    """Write the manifest of a folder and return it.

    Args:
        folder: holds all other files.
        source: what was exported.
        form: "hf", "onnx" or "torch".
        packed: whether the weights had fewer bits before.
        checked: how the files compare with the model.
        architecture: the class of transformers that reads them.
        module: what was traced.
        graph: the file of its graph.
    """
    model = source.model
    told: dict[str, Any] = {
        "content": CONTENT,
        "version": VERSION,
        "format": form,
        "model": _kind_manifest(model),
        "source": source.kind,
        "weights": "float32" + (", unpacked from fewer bits" if packed else ""),
        "positions": _rule(model, form),
        "layers": [block.attention.spec.to_json() for block in model.blocks],
        "tokenizer": _tokenizer(source),
        "checked": checked.to_json(),
    }
    if architecture is not None:
        told["architecture"] = architecture
    if module is not None:
        told["graph"] = graph
        inputs, outputs = module.inputs(), module.outputs()
    else:
        inputs, outputs = stock_ports(model)
    told["inputs"] = [port.to_json() for port in inputs]
    told["outputs"] = [port.to_json() for port in outputs]
    if isinstance(model, LM):
        table = architecture == GPT2.class_name  # whatever the model computes its positions by
        length = model.config.length if table else max_length(model)
        told |= {"length": length, "reach": reach(model)}
    names = sorted(path.name for path in folder.iterdir())
    told["files"] = {
        name: {"sha256": digest(folder / name), "bytes": (folder / name).stat().st_size}
        for name in names
    }
    text = json.dumps(told, indent=1, allow_nan=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="ascii", newline="\n")
    return told


def stock_ports(model: nn.Module) -> tuple[list[Port], list[Port]]:
    """Return what a class of transformers reads and gives, its own cache apart."""
    if isinstance(model, ViT):
        images = replace(Whole(model).inputs()[0], name="pixel_values")
        return [images], Whole(model).outputs()
    rows = ("batch", "length")
    mask = "1 = a real token, 0 = padding"
    reads = [
        Port(name="input_ids", dtype="int64", shape=rows, holds="ids"),
        Port(name="attention_mask", dtype="int64", shape=rows, holds=mask),
    ]
    if isinstance(model, LM):
        shape = (*rows, model.config.vocabulary_size)
        return reads, [replace(Decoder(model).outputs()[0], shape=shape)]
    return reads, Whole(model).outputs()


def _kind_manifest(model: nn.Module) -> str:
    if isinstance(model, LM):
        return "language model"
    return "image classifier" if isinstance(model, ViT) else "text classifier"


def _rule(model: nn.Module, form: str) -> str:
    if isinstance(model, ViT):
        return ROWS
    if form == "hf":
        return (
            "as the class of transformers counts them: give attention_mask where rows are padded, "
            "and position_ids that count real tokens where padding stands on the left"
        )
    return RULE if isinstance(model, LM) else WHOLE


def _tokenizer(source: Source) -> dict[str, Any] | None:
    """Return the tokenizer's entry: the file is in the format of the tokenizers library."""
    if source.tokenizer is None:
        return None
    one = source.tokenizer
    return {
        "file": "tokenizer.json",
        "tokens": one.vocabulary_size,
        "begin": one.begin,
        "end": one.end,
        "rule": "begin stands before a text and end behind it; the file adds neither by itself",
    }


Step = Callable[[str], None]
COMPARING = "comparing what was written with the model"
CONFIG, GENERATION, WEIGHTS = "config.json", "generation_config.json", "model.safetensors"


@torch.no_grad()
def export(
    source: Path | str,
    form: str,
    out: Path | str,
    *,
    tokenizer: Path | str | None = None,
    step: Callable[[str], None] = lambda _doing: None,
) -> dict[str, Any]:
    """Write a checkpoint in another form, check it against the model, and return its manifest.

    Args:
        source: what `suffice.convert.sources.open_source` opens, or a classifier's folder.
        form: "hf", "onnx" or "torch".
        out: the folder; one that an export wrote before is replaced, when all is written.
        tokenizer: of the source, where it has none beside it.
        step: told what is being done.

    Raises:
        ConfigError: if the form is unknown, cannot hold the model, or a package is not installed.
        CheckpointError: if the source cannot be read, the folder not written, or what was written
            does not compute what the model does.
        DataError: if a tokenizer is absent or damaged.
    """
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if form == "onnx":
        formats.needed()
    step(f"reading {source}")
    found, packed = opened(Path(source), tokenizer=None if tokenizer is None else Path(tokenizer))
    with writing(Path(out)) as folder:
        facts = _FORMS[form](found, folder, step)
        if found.tokenizer is not None:
            found.tokenizer.save(folder)
        return manifest_of(folder, found, form=form, packed=packed, **facts)


def _hugging_face(source: Source, folder: Path, step: Step) -> dict[str, Any]:
    """Write config, weights and what generates; read them back and compare."""
    model, marks = source.model, source.tokenizer
    ends = {} if marks is None else {"begin": marks.begin, "end": marks.end}
    config = config_of(model, **ends)
    config |= {"dtype": "float32", "torch_dtype": "float32"}
    stock = described(model, config)
    _write(folder / CONFIG, config)
    if isinstance(model, LM):
        ids = {n: config[n] for n in ("bos_token_id", "eos_token_id") if config[n] is not None}
        _write(folder / GENERATION, {"_from_model_config": True, **ids})
    (folder / WEIGHTS).write_bytes(serialise(tensors_for(stock, config), {"format": "pt"}))
    step(COMPARING)
    again = hugging_face.read(folder, config)
    return {"checked": _compared(model, again), "architecture": config["architectures"][0]}


def _compared(model: nn.Module, again: nn.Module) -> Checked:
    """Compare two models on a few inputs of different lengths."""
    draws, config = torch.Generator().manual_seed(0), model.config
    worst, largest, cases = 0.0, 1.0, 0
    for batch in (1, 3):
        for length in (1, min(7, config.length), min(64, config.length)):
            if isinstance(model, ViT):
                size = (batch, config.channels, config.image_size, config.image_size)
                x = torch.randn(size, generator=draws)
            else:
                x = torch.randint(config.vocabulary_size, (batch, length), generator=draws)
            wanted = model(x)
            worst = max(worst, float((again(x) - wanted).abs().max()))
            largest = max(largest, float(wanted.abs().max()))
            cases += 1
    if not worst <= CLOSE * largest:
        raise CheckpointError(
            f"what was written does not compute what the model does: logits differ by {worst:.1e}; "
            "nothing was kept. Export it to onnx."
        )
    return Checked(cases=cases, difference=worst)


def _module(model: nn.Module) -> Decoder | Whole:
    return Decoder(model) if isinstance(model, LM) else Whole(model)  # type: ignore[arg-type]


def _onnx(source: Source, folder: Path, step: Step) -> dict[str, Any]:
    module = _module(source.model)
    path = folder / formats.FILE
    step("tracing the model, and translating it to ONNX")
    formats.write(module, path)
    step(COMPARING)
    return _graph(module, source.model, path, formats.call_of(path))


def _torch(source: Source, folder: Path, step: Step) -> dict[str, Any]:
    module = _module(source.model)
    path = folder / formats.ARCHIVE_FILE
    step("tracing the model")
    formats.write_archive(module, path)
    step(COMPARING)
    return _graph(module, source.model, path, formats.call_of_archive(path, module))


def _graph(module: Decoder | Whole, model: nn.Module, path: Path, call: Callable) -> dict[str, Any]:
    return {"checked": check(call, module, model), "module": module, "graph": path.name}


def _write(path: Path, data: dict[str, Any]) -> None:
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    path.write_text(text, encoding="ascii", newline="\n")


_FORMS: dict[str, Callable[[Source, Path, Step], dict[str, Any]]] = {
    "hf": _hugging_face,
    "onnx": _onnx,
    "torch": _torch,
}
