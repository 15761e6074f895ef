"""Opens the model at a path; the files there decide which kind it is."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from suffice.convert.sources import hugging_face, llama2c
from suffice.convert.sources.weights import check_finite
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.models import LM, folder
from suffice.text import BPE, Tokenizer, llama, load_tokenizer
from suffice.text.tokenizer import read_object

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, kw_only=True)
class Source:
    """An opened model, and what its files say beside the weights.

    Args:
        model: in evaluation, with Standard attention unless it is from a folder of this library.
        kind: "suffice", "llama2.c", or the architecture that a config.json of transformers names.
        tokenizer: None for a model that reads no text, or where none was found.
        facts: entries for the config.json of a folder that it is written to.
    """

    model: nn.Module
    kind: str
    tokenizer: Tokenizer | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def open_source(path: Path | str, *, tokenizer: Path | str | None = None) -> Source:
    """Return the model at a path; nothing is downloaded, unpickled or executed.

    Args:
        path: a folder of `suffice train` or `suffice convert`, a folder with the config.json and
            the safetensors of a model of transformers, or a .bin of llama2.c.
        tokenizer: a saved tokenizer's folder, a tokenizer.json or tokenizer.bin of a Llama model;
            None = the one beside the model.

    Raises:
        CheckpointError: if there is no such model, its files do not fit each other, it holds NaN,
            or its architecture is not supported.
        ConfigError: if the model has something that no model here supports, or another tokenizer.
        DataError: if a tokenizer is absent or damaged.
    """
    path, facts = Path(path), {}
    if path.is_file() and path.suffix == ".bin" and path.stem != "pytorch_model":
        model, kind = llama2c.read(path), "llama2.c"
        words = _llama2c_tokenizer(path) if tokenizer is None else None
    elif not path.is_dir():
        problem = "is no checkpoint" if path.exists() else "does not exist"
        raise CheckpointError(
            f"{path} {problem}; give a folder of suffice, a folder with config.json and "
            "safetensors of transformers, or a .bin of llama2.c. Other files are never opened."
        )
    elif "model_type" not in (config := hugging_face.read_config(path)):
        kind = "suffice"
        model, words, facts = folder.load(path)
        check_finite(model.state_dict(), path)
        model.float()
    else:
        model, kind = hugging_face.read(path, config), str(config["model_type"])
        if not isinstance(model, LM):
            return Source(model=model, kind=kind)
        words = _tokenizer_json(path, config) if tokenizer is None else None
    if tokenizer is not None:
        named = Path(tokenizer)
        words = load_tokenizer(named) if named.is_dir() else llama(named)
    size = model.config.vocabulary_size
    if words is not None and words.vocabulary_size > size:
        raise ConfigError(
            f"the tokenizer has {words.vocabulary_size:,} tokens and {path} {size:,}; give the "
            "tokenizer that the model was trained with."
        )
    return Source(model=model, kind=kind, tokenizer=words, facts=facts)


def _llama2c_tokenizer(checkpoint: Path) -> Tokenizer | None:
    """Return the tokenizer in the only file tok*.bin beside a checkpoint of llama2.c."""
    files = sorted(path for path in checkpoint.parent.glob("tok*.bin") if path != checkpoint)
    if len(files) > 1:
        raise DataError(
            f"several tokenizers are beside {checkpoint}: {', '.join(p.name for p in files[:4])}; "
            "choose one by --tokenizer."
        )
    return llama(files[0]) if files else None


def _tokenizer_json(folder: Path, config: dict[str, Any]) -> Tokenizer | None:
    """Return the tokenizer.json of a folder, with the begin and end that its config.json names."""
    path = folder / TOKENIZER
    if not path.is_file():
        return None
    text, description = read_object(path)
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
