"""Checkpoints of transformers: a config.json and safetensors, read without that library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from suffice.convert.sources.encoders import BERT, VIT
from suffice.convert.sources.family import Family, Given, state_of, tensors_of
from suffice.convert.sources.gpt2 import GPT2
from suffice.convert.sources.llama import FAMILIES as LLAMAS
from suffice.convert.sources.weights import read_json, tensors_in
from suffice.errors import CheckpointError, ConfigError

CONFIG = "config.json"
BESIDE = ("tok", "pytorch_model")  # how files of .bin begin that are no model of llama2.c
FAMILIES: dict[str, Family] = {one.model_type: one for one in (GPT2, *LLAMAS, BERT, VIT)}
"""Each architecture by the model_type of its config.json."""


def config_in(folder: Path) -> dict[str, Any]:
    """Return the config.json of a folder.

    Raises:
        CheckpointError: if there is none, or it is no JSON object.
    """
    if not (folder / CONFIG).is_file():
        found = [one for one in folder.glob("*.bin") if not one.name.startswith(BESIDE)]
        single = f", or the file of llama2.c itself: {found[0]}" if len(found) == 1 else ""
        raise CheckpointError(
            f"{folder} holds no {CONFIG}; give a folder of suffice, or of a model of transformers"
            f"{single}."
        )
    return read_json(folder / CONFIG)


def read(folder: Path, config: dict[str, Any]) -> nn.Module:
    """Return the model of a folder with Standard attention, in evaluation and float32.

    Args:
        folder: holds the weights.
        config: the content of its config.json.

    Raises:
        CheckpointError: for an architecture that is not known, or files that do not fit.
        ConfigError: if the configuration asks for something that no model here computes.
    """
    family, given = _known(config, folder)
    model = _built(family, given, folder)
    tensors = _named(family, tensors_in(folder))
    parts = family.parts(model, given)
    if "lm_head.weight" in tensors and not any(p.theirs == "lm_head.weight" for p in parts):
        _drop_tied(tensors, parts[0].theirs, folder)
    own = dict(model.state_dict())
    model.load_state_dict(state_of(parts, tensors, own, folder), assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model.eval()


def tensors_for(model: nn.Module, config: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a model under the names transformers has for them.

    Args:
        model: as `read` returns one.
        config: of the model as transformers describes it, with its model_type.

    Raises:
        CheckpointError: for an architecture that is not known.
        ConfigError: if the model is not of that architecture.
    """
    family, given = _known(config, CONFIG)
    state = model.state_dict()
    wanted = family.build(given).state_dict()
    if {n: t.shape for n, t in wanted.items()} != {n: t.shape for n, t in state.items()}:
        raise ConfigError(
            f"the model is no {family.model_type} of this configuration: its tensors differ in "
            "names or shapes; convert it to that first."
        )
    return tensors_of(family.parts(model, given), state)


def _known(config: dict[str, Any], where: object) -> tuple[Family, Given]:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise CheckpointError(
            f"{where}: the architecture {kind!r:.60} is not read; legal: "
            f"{', '.join(sorted(FAMILIES))}."
        )
    family, named = FAMILIES[kind], config.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
        raise CheckpointError(f"{where}: architectures={named!r:.60} is no list of names.")
    if named and family.architecture not in named:
        raise CheckpointError(
            f"{where} holds a {named[0]:.60}; of {kind} only {family.architecture} is read."
        )
    return family, Given(config, where)


def _built(family: Family, given: Given, folder: Path) -> nn.Module:
    with torch.device("meta"):
        try:
            return family.build(given)
        except RuntimeError as error:  # torch's, of sizes that overflow
            raise CheckpointError(f"{folder}: no model has such sizes ({error!s:.200}).") from error


def _named(family: Family, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that are read, under the names they have beside a head."""
    ends = family.derived
    kept = {name: one for name, one in tensors.items() if not (ends and name.endswith(ends))}
    if family.prefix and not any(name.startswith(family.prefix) for name in kept):
        kept = {
            name if name == "lm_head.weight" else f"{family.prefix}{name}": one
            for name, one in kept.items()
        }
    return kept


def _drop_tied(tensors: dict[str, Tensor], embedding: str, folder: Path) -> None:
    """Leave out a head that is the embedding."""
    head = tensors.pop("lm_head.weight")
    if embedding in tensors and not torch.equal(head, tensors[embedding]):
        raise CheckpointError(
            f"{folder}: config.json ties the head to the embedding and their weights differ; set "
            "tie_word_embeddings to what is true."
        )
