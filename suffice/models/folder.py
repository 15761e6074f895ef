"""A trained language model as a folder: weights, sizes, tokenizer and further facts.

Three kinds of files: model.safetensors, config.json, and those of the tokenizer. Nothing in them
is ever executed, and their names are fixed, so that no content can lead out of the folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import torch

from suffice import checkpoint
from suffice.errors import CheckpointError, ConfigError, DataError, ShapeError
from suffice.files import replacing
from suffice.layers.packed import Scheme
from suffice.models import packed
from suffice.models.lm import LM, LMConfig
from suffice.spec import AttentionSpec
from suffice.text import Tokenizer, load_tokenizer

WEIGHTS, CONFIG = "model.safetensors", "config.json"
LONGEST = 1 << 24  # bytes of a config
RESERVED = ("model", "specs", "packed")  # entries of config.json
ADVICE = (
    "Models of others, of transformers or llama2.c, become such a folder, exactly, by `suffice "
    "convert SOURCE --to standard`."
)


def save(folder: Path | str, lm: LM, tokenizer: Tokenizer, **facts: Any) -> None:
    """Write a language model so that `load` and the command line can read it.

    The weights are written last: a folder with weights is complete.

    Args:
        folder: created if it is absent; another model in it is replaced.
        lm: the model, in DDP or not.
        tokenizer: of its tokens.
        **facts: further entries of config.json, such as recipe="shakespeare_char"; plain data.

    Raises:
        CheckpointError: if something cannot be written.
        ConfigError: if a fact has the name of a reserved entry.
        ShapeError: if the tokenizer has more tokens than the model.
    """
    folder, lm = Path(folder), checkpoint.bare(lm)
    if reserved := [name for name in RESERVED if name in facts]:
        raise ConfigError(f"{reserved[0]!r} is a reserved entry; give the fact another name.")
    _check_vocabulary(lm.config, tokenizer)
    schemes = {name: scheme.to_json() for name, scheme in packed.schemes_of(lm).items()}
    config = {
        "model": lm.config.to_json(),
        "specs": [spec.to_json() for spec in lm.specs],
        **({"packed": schemes} if schemes else {}),
        **facts,
    }
    try:
        text = json.dumps(config, indent=1, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"cannot write {folder}: facts are not JSON ({error}).") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(folder)
        with replacing(folder / CONFIG) as temporary:
            temporary.write_text(text, encoding="ascii", newline="\n")
    except (OSError, DataError) as error:
        raise CheckpointError(
            f"cannot write {folder} ({getattr(error, 'strerror', None) or error}); free space or "
            "give a folder that can be written."
        ) from error
    checkpoint.save(folder / WEIGHTS, lm.state_dict(), {"content": "language model"})


def load(
    folder: Path | str,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> tuple[LM, Tokenizer, dict[str, Any]]:
    """Return the model of a folder in evaluation mode, its tokenizer, and the facts.

    Args:
        folder: written by `save` or `suffice train`.
        device: of the weights. On CUDA packed maps use torchao if it is installed
            (`suffice.quantise.with_torchao`).
        dtype: of the weights; None = as stored. Not for packed weights.

    Raises:
        CheckpointError: if the folder is absent or incomplete, or a file does not fit the others.
        ConfigError: if the library of a byte-pair tokenizer is not installed, or a dtype is given
            for packed weights.
    """
    folder = Path(folder)
    config, specs, schemes, facts = _read_config(folder)
    if schemes and dtype not in (None, torch.float32):
        raise ConfigError(
            f"{folder} holds packed weights, which compute in float32; leave dtype={dtype} out, or "
            "unpack the model (`suffice.quantise.unpack`)."
        )
    try:
        tokenizer = load_tokenizer(folder)
        _check_vocabulary(config, tokenizer)
    except (DataError, ShapeError) as error:
        raise CheckpointError(f"{folder} has no tokenizer that fits: {error}") from error
    try:
        lm = config.build(specs, device="meta")
        packed.make_room(lm, schemes)
    except (ConfigError, RuntimeError, TypeError) as error:  # torch raises if sizes overflow
        reason = str(error).partition("\n")[0]
        _refuse(folder, f"the sizes and specs do not fit each other ({reason:.300})")
    expected = lm.state_dict()
    if not schemes:  # all weights have the one dtype of the file
        expected = _cast(expected, checkpoint.dtype_of(folder / WEIGHTS))
    stored, _ = checkpoint.load(folder / WEIGHTS, expected)
    if dtype is not None and not schemes:
        stored = _cast(stored, dtype)
    lm.load_state_dict(stored, assign=True)
    try:
        packed.check(lm)
    except ConfigError as error:
        _refuse(folder, f"{WEIGHTS} is damaged ({error!s:.300})")
    lm.to(device).eval()
    packed.use_torchao_by_default(lm, lm.device.type)
    return lm, tokenizer, facts


def _cast(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}


def _read_config(
    folder: Path,
) -> tuple[LMConfig, list[AttentionSpec], dict[str, Scheme], dict[str, Any]]:
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(
            f"{folder} holds no language model (there is no {CONFIG} in it); give the folder that "
            f"`suffice train` wrote. {ADVICE}"
        )
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(LONGEST))
    except (OSError, ValueError, RecursionError) as error:
        _refuse(folder, f"{CONFIG} cannot be read ({error!s:.200})")
    if not isinstance(data, dict) or not isinstance(data.get("specs"), list):
        if isinstance(data, dict) and "model_type" in data:
            raise CheckpointError(f"{folder} is a checkpoint of transformers. {ADVICE}")
        _refuse(folder, f'{CONFIG} is no JSON object with "model" and "specs"')
    try:
        config = LMConfig.from_json(data.get("model"))
        specs = [AttentionSpec.from_json(spec) for spec in data["specs"]]
        packed_maps = data.get("packed", {})
        schemes = {name: Scheme.from_json(scheme) for name, scheme in packed_maps.items()}
    except (ConfigError, TypeError, AttributeError, KeyError) as error:
        _refuse(folder, f"{CONFIG} is not that of a language model here ({error!s:.300})")
    return config, specs, schemes, {k: v for k, v in data.items() if k not in RESERVED}


def _refuse(folder: Path, reason: str) -> NoReturn:
    raise CheckpointError(
        f"{folder} cannot be loaded: {reason}. Give a folder that `suffice train` wrote, whole."
    )


def _check_vocabulary(config: LMConfig, tokenizer: Tokenizer) -> None:
    if tokenizer.vocabulary_size > config.vocabulary_size:
        raise ShapeError(
            f"the tokenizer has {tokenizer.vocabulary_size:,} tokens and the model "
            f"{config.vocabulary_size:,}; give the tokenizer that the model was made for."
        )
