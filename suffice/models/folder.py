"""A trained language model as a folder: weights, sizes, tokenizer, and what is known of it.

Three kinds of files: model.safetensors, config.json, and those of the tokenizer. Nothing in them
is ever executed, and their names are fixed, so that nothing in them leads out of the folder.
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
from suffice.models.packed import use_torchao_by_default
from suffice.spec import AttentionSpec
from suffice.text import Tokenizer, load_tokenizer

WEIGHTS, CONFIG = "model.safetensors", "config.json"
LONGEST = 1 << 24  # bytes of a config
OWN = ("model", "specs", "packed")
OTHERS = (
    "Models of others, of transformers or llama2.c, become such a folder, exactly, by `suffice "
    "convert SOURCE --to standard`."
)


def save(folder: Path | str, lm: LM, tokenizer: Tokenizer, **facts: Any) -> None:
    """Write a language model so that `load` and the command line read it.

    The weights come last: a folder that holds them is whole.

    Args:
        folder: made where it is absent; what it held of another model is replaced.
        lm: the model, in DDP or not.
        tokenizer: of its tokens.
        **facts: what else is known, such as recipe="shakespeare_char"; anything JSON can say.

    Raises:
        CheckpointError: if something cannot be stored or the disk refuses.
        ConfigError: if a fact has a name of the folder's own.
        ShapeError: if the tokenizer has more tokens than the model.
    """
    folder, lm = Path(folder), checkpoint.bare(lm)
    if taken := [name for name in OWN if name in facts]:
        raise ConfigError(f"{taken[0]!r} is the folder's own entry; give the fact another name.")
    _check_vocabulary(lm.config, tokenizer)
    described = {
        "model": lm.config.to_json(),
        "specs": [spec.to_json() for spec in lm.specs],
        **_packed(lm),
        **facts,
    }
    try:
        text = json.dumps(described, indent=1, allow_nan=False) + "\n"
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
    """Return the model of a folder, ready to evaluate, its tokenizer and the facts beside it.

    Args:
        folder: what `save` or `suffice train` wrote.
        device: where the weights go. On CUDA packed maps go through torchao if it is installed
            (`suffice.quantise.with_torchao`).
        dtype: of the weights; None = as they are stored. Packed ones stay as they are.

    Raises:
        CheckpointError: if the folder is absent or incomplete, or a file does not fit the others.
        ConfigError: if the tokenizer is a byte-pair one and its library is not installed, or a
            dtype is asked of a model with packed weights.
    """
    folder = Path(folder)
    config, specs, schemes, facts = _described(folder)
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
    except (ConfigError, RuntimeError, TypeError) as error:  # torch's, of sizes that overflow
        reason = str(error).partition("\n")[0]
        _refuse(folder, f"the sizes and specs do not fit each other ({reason:.300})")
    expected = lm.state_dict() if schemes else _expected(folder, lm)
    stored, _ = checkpoint.load(folder / WEIGHTS, expected)
    if dtype is not None and not schemes:
        stored = {n: t.to(dtype) if t.is_floating_point() else t for n, t in stored.items()}
    lm.load_state_dict(stored, assign=True)
    try:
        packed.check(lm)
    except ConfigError as error:
        _refuse(folder, f"{WEIGHTS} is damaged ({error!s:.300})")
    lm.to(device).eval()
    use_torchao_by_default(lm, lm.device.type)
    return lm, tokenizer, facts


def _expected(folder: Path, lm: LM) -> dict[str, torch.Tensor]:
    """Return what the weights must be, in the one dtype that the file has for them."""
    own = lm.state_dict()
    dtype = checkpoint.dtype_of(folder / WEIGHTS)
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in own.items()}


def _packed(lm: LM) -> dict[str, Any]:
    """Return the entry of packed weights, if there are any."""
    schemes = {name: scheme.to_json() for name, scheme in packed.schemes_of(lm).items()}
    return {"packed": schemes} if schemes else {}


def _described(
    folder: Path,
) -> tuple[LMConfig, list[AttentionSpec], dict[str, Scheme], dict[str, Any]]:
    """Return what config.json says: sizes, specs, schemes of packed weights, other facts."""
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(
            f"{folder} holds no language model (there is no {CONFIG} in it); give the folder that "
            f"`suffice train` wrote. {OTHERS}"
        )
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(LONGEST))
    except (OSError, ValueError, RecursionError) as error:
        _refuse(folder, f"{CONFIG} cannot be read ({error!s:.200})")
    if not isinstance(data, dict) or not isinstance(data.get("specs"), list):
        if isinstance(data, dict) and "model_type" in data:
            raise CheckpointError(f"{folder} is a checkpoint of transformers. {OTHERS}")
        _refuse(folder, f'{CONFIG} is no JSON object with "model" and "specs"')
    try:
        config = LMConfig.from_json(data.get("model"))
        specs = [AttentionSpec.from_json(one) for one in data["specs"]]
        given = data.get("packed", {})
        schemes = {name: Scheme.from_json(one) for name, one in given.items()}
    except (ConfigError, TypeError, AttributeError, KeyError) as error:
        _refuse(folder, f"{CONFIG} is not that of a language model here ({error!s:.300})")
    return config, specs, schemes, {k: v for k, v in data.items() if k not in OWN}


def _refuse(folder: Path, told: str) -> NoReturn:
    raise CheckpointError(
        f"{folder} cannot be loaded: {told}. Give a folder that `suffice train` wrote, whole."
    )


def _check_vocabulary(config: LMConfig, tokenizer: Tokenizer) -> None:
    if tokenizer.vocabulary_size > config.vocabulary_size:
        raise ShapeError(
            f"the tokenizer has {tokenizer.vocabulary_size:,} tokens and the model "
            f"{config.vocabulary_size:,}; give the tokenizer that the model was made for."
        )
