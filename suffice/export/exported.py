"""`export`: a checkpoint as files that other programs run, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as serialise
from torch import nn

from suffice.convert.sources import Source, hugging_face, tensors_for
from suffice.errors import CheckpointError, unknown
from suffice.export import archive, onnx_graph
from suffice.export.architecture import config_of
from suffice.export.decoder import Decoder
from suffice.export.described import described
from suffice.export.folder import writing
from suffice.export.manifest import manifest_of
from suffice.export.opened import opened
from suffice.export.parity import CLOSE, Checked, check
from suffice.export.whole import Whole
from suffice.models import LM
from suffice.models.vit import ViT
from suffice.runtime.manifest import FORMATS

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
        onnx_graph.needed()
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
    path = folder / onnx_graph.FILE
    step("tracing the model, and translating it to ONNX")
    onnx_graph.write(module, path)
    step(COMPARING)
    return _graph(module, source.model, path, onnx_graph.call_of(path))


def _torch(source: Source, folder: Path, step: Step) -> dict[str, Any]:
    module = _module(source.model)
    path = folder / archive.FILE
    step("tracing the model")
    archive.write(module, path)
    step(COMPARING)
    return _graph(module, source.model, path, archive.call_of(path, module))


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
