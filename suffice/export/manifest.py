"""The manifest of an export: what is in it, how it is called, and the sha256 of each file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from suffice.convert.sources import Source
from suffice.convert.sources.gpt2 import GPT2
from suffice.export.decoder import Decoder, Port, reach
from suffice.export.parity import Checked
from suffice.export.whole import Whole
from suffice.generate.limits import most_tokens
from suffice.models import LM
from suffice.models.vit import ViT
from suffice.runtime.manifest import CONTENT, MANIFEST, VERSION, digest

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
        "model": _kind(model),
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
        table = architecture == GPT2.architecture  # whatever the model computes its positions by
        length = model.config.length if table else most_tokens(model)
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


def _kind(model: nn.Module) -> str:
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
