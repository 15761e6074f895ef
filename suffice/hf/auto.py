"""Registration with the Auto classes, tokenizers, and folders for transformers."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from suffice.errors import CheckpointError
from suffice.hf.classifiers import (
    SufficeClassifierConfig,
    SufficeForImageClassification,
    SufficeImageClassifier,
    SufficeTextClassifier,
)
from suffice.hf.config import SufficeConfig, SufficeViTConfig
from suffice.hf.heads import SufficeForCausalLM, SufficeForSequenceClassification
from suffice.hf.model import SufficeModel
from suffice.models.architectures.weights import read_json
from suffice.text import Tokenizer
from suffice.utils.files import write_atomic

MODULE = "modeling_suffice"
CLASSES = {
    "AutoConfig": "SufficeConfig",
    "AutoModel": "SufficeModel",
    "AutoModelForCausalLM": "SufficeForCausalLM",
    "AutoModelForSequenceClassification": "SufficeForSequenceClassification",
}
CODE = '''"""Where transformers finds the classes of this model; `pip install suffice[hf]`."""

from suffice.hf import {names}

__all__ = {listed}
'''


def register() -> None:
    """Register this library's models with the Auto classes of transformers; idempotent."""
    for config in (SufficeConfig, SufficeViTConfig, SufficeClassifierConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
    for auto, config, model in (
        (AutoModel, SufficeConfig, SufficeModel),
        (AutoModelForCausalLM, SufficeConfig, SufficeForCausalLM),
        (AutoModelForSequenceClassification, SufficeConfig, SufficeForSequenceClassification),
        (AutoModelForSequenceClassification, SufficeClassifierConfig, SufficeTextClassifier),
        (AutoModelForImageClassification, SufficeViTConfig, SufficeForImageClassification),
        (AutoModelForImageClassification, SufficeClassifierConfig, SufficeImageClassifier),
    ):
        auto.register(config, model, exist_ok=True)


def write_auto_map(folder: Path | str) -> None:
    """Let programs that do not import this library load a saved language model.

    Adds `modeling_suffice.py`, which imports `suffice.hf`, and `auto_map` to config.json. Such a
    program needs trust_remote_code=True, and this library installed.

    Args:
        folder: folder that `save_pretrained` wrote.

    Raises:
        CheckpointError: if that is not a folder of a language model of this library.
    """
    folder = Path(folder)
    config = read_json(folder / "config.json")
    if (kind := config.get("model_type")) != SufficeConfig.model_type:
        raise CheckpointError(
            f"{folder} holds a model of type {kind!r}; give one of type 'suffice'."
        )
    config["auto_map"] = {auto: f"{MODULE}.{name}" for auto, name in CLASSES.items()}
    names = sorted(CLASSES.values())
    code = CODE.format(names=", ".join(names), listed=json.dumps(names))
    write_atomic(folder / f"{MODULE}.py", code)
    write_atomic(folder / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")


def hf_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return a tokenizer of transformers that gives the same ids.

    It pads on the left, as generation needs, with the token that ends a document; without one it
    cannot pad until `pad_token` is set.

    Args:
        tokenizer: a tokenizer of `suffice.text`.
    """
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        converted = PreTrainedTokenizerFast.from_pretrained(
            folder, padding_side="left", model_input_names=["input_ids", "attention_mask"]
        )
    if converted.pad_token is None and converted.eos_token is not None:
        converted.pad_token = converted.eos_token
    return converted


def convert(folder: Path | str, out: Path | str) -> SufficeForCausalLM:
    """Write a trained model and its tokenizer for `AutoModelForCausalLM` and `AutoTokenizer`.

    Args:
        folder: folder written by `suffice train --out`.
        out: folder for everything that transformers needs, see `write_auto_map`.

    Returns:
        The model that was written.
    """
    from suffice.models.folder import load

    lm, tokenizer, _ = load(folder)
    model = SufficeForCausalLM.from_suffice(lm, tokenizer).eval()
    model.save_pretrained(out)
    hf_tokenizer(tokenizer).save_pretrained(out)
    write_auto_map(out)
    return model
