"""A trained model as a folder: weights, sizes, attention, tokenizer and further facts.

Every command that leaves a trained model writes this one format: config.json (what the model is and
what its inputs and outputs mean), model.safetensors, and the files of a tokenizer where it reads
text. Nothing in them is ever executed, and their names are fixed, so that no content can lead out
of the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from suffice.errors import CheckpointError, ConfigError, DataError, ShapeError
from suffice.layers.packed import Scheme
from suffice.models import checkpoint, packed
from suffice.models.config import ModelConfig
from suffice.models.kinds import KINDS, attention_of, build_model, kind_of
from suffice.models.lm import LM
from suffice.spec import AttentionSpec
from suffice.text import Tokenizer, load_tokenizer
from suffice.text.tokenizer import DESCRIPTION, NAMES
from suffice.text.tokenizer import read as read_tokenizer
from suffice.utils import hub
from suffice.utils.files import check_links, parse_json, replacing, replacing_folder

WEIGHTS, CONFIG = "model.safetensors", "config.json"
PREPROCESSOR = "preprocessor_config.json"
SOURCE = "source"  # folder of the tokenizer of what a translator reads
MAX_CONFIG = 1 << 24  # bytes
MAX_LAYERS, MAX_LEVELS = 1024, 64  # of a config
LANGUAGE = "language model"  # of folders that name no kind
WRITTEN = frozenset(
    {CONFIG, WEIGHTS, SOURCE, DESCRIPTION, NAMES, PREPROCESSOR, "quantise.json", "certificate.json"}
)
"""Names in a folder that quantise and convert wrote, and may replace."""
RESERVED = ("model", "specs", "packed", "kind", "model_type")  # entries of config.json
MODEL_TYPES = {"text classifier": "suffice_classifier", "image classifier": "suffice_classifier"}
"""What transformers knows a kind by, once `suffice.hf` is imported."""
ADVICE = (
    "Models of others, of transformers or llama2.c, become such a folder, exactly, by `suffice "
    "convert SOURCE --to keep`."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredModel:
    """The contents of a model's folder."""

    model: nn.Module  # in evaluation mode
    kind: str  # a key of `suffice.models.kinds.KINDS`
    tokenizer: Tokenizer | None = None  # of its text, or of a translation
    source_tokenizer: Tokenizer | None = None  # of the texts that a translator reads
    # other entries of config.json, such as `classes` and `preparation`
    facts: dict[str, Any] = field(default_factory=dict)


def save(
    folder: Path | str,
    model: nn.Module,
    tokenizer: Tokenizer | None = None,
    *,
    source_tokenizer: Tokenizer | None = None,
    **facts: Any,
) -> None:
    """Write a model so that `read`, `suffice.load` and the command line can read it.

    The weights are written last, with a digest of the folder's config and tokenizers: a
    folder in which a killed program mixed two models is refused. `replacing_model` writes a folder
    that is replaced whole.

    Args:
        folder: path of the folder, created if absent; another model in it is replaced.
        model: a model of a kind in `suffice.models.kinds.KINDS`, in DDP or not.
        tokenizer: tokenizer of its text; None for images, and for tasks of ids alone.
        source_tokenizer: tokenizer of the texts that a translator reads.
        **facts: further entries of config.json, such as recipe="shakespeare_char"; plain data.

    Raises:
        CheckpointError: if something cannot be written.
        ConfigError: if a fact has the name of a reserved entry.
        ShapeError: if the tokenizer has more tokens than the model.
    """
    folder, model = Path(folder), checkpoint.bare(model)
    if reserved := [name for name in RESERVED if name in facts]:
        raise ConfigError(f"{reserved[0]!r} is a reserved entry; give the fact another name.")
    if tokenizer is not None:
        _check_vocabulary(model.config, tokenizer)
    kind = kind_of(model)
    schemes = {name: scheme.to_json() for name, scheme in packed.schemes_of(model).items()}
    config = {
        "kind": kind,
        **({"model_type": MODEL_TYPES[kind]} if kind in MODEL_TYPES else {}),
        "model": model.config.to_json(),
        "specs": [spec.to_json() for spec in attention_of(model)],
        **({"packed": schemes} if schemes else {}),
        **facts,
    }
    try:
        text = json.dumps(config, indent=1, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"cannot write {folder}: facts are not JSON ({error}).") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place, words in ((folder, tokenizer), (folder / SOURCE, source_tokenizer)):
            if words is not None:
                place.mkdir(exist_ok=True)
                words.save(place)
        with replacing(folder / CONFIG) as temporary:
            temporary.write_text(text, encoding="ascii", newline="\n")
    except (OSError, DataError) as error:
        raise CheckpointError(
            f"cannot write {folder} ({getattr(error, 'strerror', None) or error}); free space or "
            "give a folder that can be written."
        ) from error
    described = {"content": kind, "described": _digest(config), "tokenizers": _spelling(folder)}
    if "measured" in facts:  # what was measured goes with the weights that it was measured of
        described["measured"] = facts["measured"]
    checkpoint.save(folder / WEIGHTS, model.state_dict(), described)


@contextlib.contextmanager
def replacing_model(out: Path) -> Iterator[Path]:
    """Yield an empty folder to `save` a model in; it becomes `out`, whole, when the block ends."""
    check_replaceable(out)
    try:
        with replacing_folder(out) as folder:
            yield folder
    except OSError as error:
        raise CheckpointError(
            f"cannot write {out} ({error.strerror or error}); free space or give a folder that can "
            "be written."
        ) from error


def check_replaceable(out: Path) -> None:
    """Raise ConfigError if a folder to write holds files that no command for models wrote."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    strange = (
        sorted({path.name for path in out.iterdir()} - WRITTEN) if out.is_dir() else [out.name]
    )
    try:
        if not strange and not is_ours(read_config(out)):
            strange = [CONFIG]
    except CheckpointError:
        strange = [CONFIG]
    if strange:
        raise ConfigError(
            f"--out {out} exists and holds {strange[0]!r:.60}, which is not of a model that this "
            "command wrote; give a folder that is not there yet."
        )


def load(
    folder: Path | str,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> tuple[LM, Tokenizer, dict[str, Any]]:
    """Return the language model of a folder, its tokenizer, and the facts; see `read`.

    Raises:
        CheckpointError: also if the folder holds another kind of model, or no tokenizer.
    """
    stored = read(folder, device, dtype)
    if not isinstance(stored.model, LM):
        raise CheckpointError(
            f"{folder} holds no language model but a {stored.kind}; ask it by `suffice predict`."
        )
    if stored.tokenizer is None:
        _refuse_tokenizer(Path(folder), f"{Path(folder) / DESCRIPTION} does not exist.")
    return stored.model, stored.tokenizer, stored.facts


def read(
    folder: Path | str,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> StoredModel:
    """Return the model of a folder in evaluation mode, with its tokenizer and facts.

    `folder` is one that `save` wrote, "hf:ORG/NAME[@REVISION]" of such a folder on the hub, or a
    .gguf of llama.cpp. Packed weights refuse a dtype, but for those of a .gguf, which are unpacked
    then; on CUDA packed maps use torchao if it is installed (`suffice.quantise.with_torchao`).
    """
    folder = hub.local(folder)
    if folder.suffix == ".gguf" and folder.is_file():
        return _read_gguf(folder, device, dtype)
    kind, config, specs, schemes, facts = _read_config(folder)
    digest = _digest(read_config(folder))
    if schemes and dtype not in (None, torch.float32):
        raise ConfigError(
            f"{folder} holds packed weights, which compute in float32; leave dtype={dtype} out, or "
            "unpack the model (`suffice.quantise.unpack`)."
        )
    tokenizer = _tokenizer(folder, config)
    source = _tokenizer(folder / SOURCE, None)
    try:
        model = _empty(config, specs)
        packed.make_room(model, schemes)
    except (ConfigError, RuntimeError, TypeError) as error:  # torch raises if sizes overflow
        reason = str(error).partition("\n")[0]
        _refuse(folder, f"the sizes and specs do not fit each other ({reason:.300})")
    expected = model.state_dict()
    if not schemes:  # all weights have the one dtype of the file
        expected = _cast(expected, checkpoint.dtype_of(folder / WEIGHTS))
    stored, metadata = checkpoint.load(folder / WEIGHTS, expected)
    # weights of equal shapes may be of other heads or patterns; older files do not say
    if metadata.get("described", digest) != digest:
        _refuse(folder, f"{WEIGHTS} was written with another {CONFIG}")
    spelled = metadata.get("tokenizers")
    if None not in (tokenizer, spelled) and spelled != _spelling(folder):
        _refuse(folder, f"{WEIGHTS} was written with another tokenizer")
    if "measured" in metadata:
        facts["measured"] = metadata["measured"]
    if dtype is not None and not schemes:
        stored = _cast(stored, dtype)
    _check_finite(folder, stored)
    model.load_state_dict(stored, assign=True)
    try:
        packed.check(model)
    except ConfigError as error:
        _refuse(folder, f"{WEIGHTS} is damaged ({error!s:.300})")
    model.to(device).eval()
    packed.use_torchao_by_default(model, torch.device(device).type)
    return StoredModel(
        model=model, kind=kind, tokenizer=tokenizer, source_tokenizer=source, facts=facts
    )


def _read_gguf(path: Path, device: torch.device | str, dtype: torch.dtype | None) -> StoredModel:
    from suffice.models.gguf import read_gguf

    lm, tokenizer, facts = read_gguf(path, packed=dtype is None)
    lm.to(device=device, dtype=dtype)
    packed.use_torchao_by_default(lm, torch.device(device).type)
    return StoredModel(model=lm, kind=LANGUAGE, tokenizer=tokenizer, facts=facts)


def is_ours(config: dict[str, Any]) -> bool:
    """Return whether a config.json is of this format, and not of transformers."""
    ours = config.get("model_type") in MODEL_TYPES.values()
    return ours or (isinstance(config.get("specs"), list) and "model" in config)


def _digest(config: dict[str, Any]) -> str:
    """Return what identifies the sizes and the attention that a config.json describes."""
    parts = [config.get(name) for name in ("model", "specs")]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _spelling(folder: Path) -> str:
    """Return what identifies the tokenizers in a folder; a template or a comment does not count."""
    places = [place for place in (folder, folder / SOURCE) if (place / DESCRIPTION).exists()]
    parts = []
    for place in places:
        text, _, begin, end = read_tokenizer(place)
        parts.append([text, begin, end])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _empty(config: ModelConfig, specs: list[AttentionSpec]) -> nn.Module:
    """Return the model without weights: a file of enormous sizes takes no memory."""
    with torch.random.fork_rng(devices=()), torch.device("meta"):
        return build_model(config, specs)  # type: ignore[arg-type]


def _tokenizer(folder: Path, config: ModelConfig | None) -> Tokenizer | None:
    if not (folder / DESCRIPTION).exists():
        return None
    try:
        tokenizer = load_tokenizer(folder)
        if config is not None:
            _check_vocabulary(config, tokenizer)
    except (DataError, ShapeError) as error:
        _refuse_tokenizer(folder, error)
    return tokenizer


def _refuse_tokenizer(folder: Path, reason: object) -> NoReturn:
    raise CheckpointError(f"{folder} has no tokenizer that fits: {reason}")


def _check_finite(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    for name, weight in weights.items():
        if weight.is_floating_point() and not torch.isfinite(weight).all():
            _refuse(
                folder,
                f"{name} in {WEIGHTS} holds NaN or Inf: its training diverged, or it is damaged",
            )


def _cast(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a folder as plain data; CheckpointError if there is none."""
    path = folder / CONFIG
    if not path.is_file():
        problem = f"{folder} holds no model (there is no {CONFIG} in it)"
        raise CheckpointError(
            f"{problem if folder.exists() else f'no such folder: {folder}'}; give the folder that "
            f"`suffice train` or `suffice compare` wrote. {ADVICE}"
        )
    for place in (folder, folder / SOURCE):
        if place.is_dir():
            check_links(place)
    try:
        with path.open("rb") as file:
            data = parse_json(file.read(MAX_CONFIG))
    except (OSError, ValueError, RecursionError) as error:
        _refuse(folder, f"{CONFIG} cannot be read ({error!s:.200})")
    if not isinstance(data, dict):
        _refuse(folder, f"{CONFIG} is not a JSON object")
    if _is_deeper(data, MAX_LEVELS):
        _refuse(folder, f"{CONFIG} is nested more than {MAX_LEVELS} levels deep")
    return data


def _is_deeper(data: Any, levels: int) -> bool:
    """Return whether plain data has more levels; without recursion, which a file could exhaust."""
    inside: list[Any] = [data]
    for _ in range(levels):
        lists = (list(i.values()) if isinstance(i, dict) else i for i in inside)
        inside = [each for items in lists for each in items if isinstance(each, dict | list)]
        if not inside:
            return False
    return True


def _read_config(
    folder: Path,
) -> tuple[str, ModelConfig, list[AttentionSpec], dict[str, Scheme], dict[str, Any]]:
    data = read_config(folder)
    if not isinstance(data.get("specs"), list):
        if "model_type" in data:
            raise CheckpointError(f"{folder} is a checkpoint of transformers. {ADVICE}")
        _refuse(folder, f'{CONFIG} is not a JSON object with "model" and "specs"')
    if len(data["specs"]) > MAX_LAYERS:
        _refuse(folder, f"{CONFIG} has {len(data['specs']):,} layers; at most {MAX_LAYERS:,} do")
    kind = data.get("kind", LANGUAGE)
    if not isinstance(kind, str) or kind not in KINDS:
        _refuse(folder, f"{CONFIG} names the kind {kind!r:.40}; legal: {', '.join(KINDS)}")
    try:
        config = KINDS[kind].from_json(data.get("model"))
        specs = [AttentionSpec.from_json(spec) for spec in data["specs"]]
        packed_maps = data.get("packed", {})
        schemes = {name: Scheme.from_json(scheme) for name, scheme in packed_maps.items()}
    except (ConfigError, TypeError, AttributeError, KeyError, OverflowError) as error:
        _refuse(folder, f"{CONFIG} does not describe a model of kind {kind!r} ({error!s:.300})")
    return kind, config, specs, schemes, {k: v for k, v in data.items() if k not in RESERVED}


def _refuse(folder: Path, reason: str) -> NoReturn:
    raise CheckpointError(
        f"{folder} cannot be loaded: {reason}. Give a folder that `suffice train` wrote, whole."
    )


def _check_vocabulary(config: Any, tokenizer: Tokenizer) -> None:
    size = getattr(config, "vocabulary_size", None) or config.target_vocabulary_size
    if tokenizer.vocabulary_size > size:
        raise ShapeError(
            f"the tokenizer has {tokenizer.vocabulary_size:,} tokens and the model "
            f"{size:,}; give the tokenizer that the model was made for."
        )
