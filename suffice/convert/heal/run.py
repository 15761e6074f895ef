"""The folder of a healing: its settings, its claim, and which models may be healed in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from suffice.convert.heal.heal import REPORT
from suffice.convert.sources import Source
from suffice.errors import ConfigError, DataError, ShapeError
from suffice.models import LM
from suffice.models.folder import CONFIG, WEIGHTS
from suffice.utils.files import RunFolder, changed_settings

SETTINGS, TOKENS = "healing_run.json", "tokens"
STAGES = ("regression", "distillation", "control")


def run_folder(out: Path) -> RunFolder:
    """Return the folder of a healing and its settings."""
    return RunFolder(out, SETTINGS, "healing", results=(CONFIG, WEIGHTS, REPORT))


def claim(out: Path, options: Mapping[str, Any], *, resume: bool) -> None:
    """Write the options into the folder of a healing, or check that they are the same."""
    run = run_folder(out)
    settings = {
        name: str(value) if isinstance(value, Path) else value for name, value in options.items()
    }
    if resume and (changes := changed_settings(run.read(), settings)):
        raise ConfigError(
            f"the healing in {out} had other options: {', '.join(changes)}; resume it with the "
            "same, or give another --out."
        )
    run.claim(settings, resume=resume)


@contextlib.contextmanager
def unclaimed_if_refused(out: Path) -> Iterator[None]:
    """Remove the claim of a healing that is refused before a stage has left anything to resume."""
    try:
        yield
    except (ConfigError, DataError, ShapeError):
        if any((out / f"{stage}.safetensors").exists() for stage in STAGES):
            raise
        for path in (out / SETTINGS, *(out / TOKENS).glob("*.bin*")):
            path.unlink(missing_ok=True)
        for folder in (out / TOKENS, out):
            with contextlib.suppress(OSError):  # other files there stay
                folder.rmdir()
        raise


def check_sources(converted: Path, student: Source, original: Path, teacher: Source) -> None:
    """Refuse models that cannot be healed, or that do not belong together."""
    for path, source in ((converted, student), (original, teacher)):
        if not isinstance(source.model, LM):
            raise ConfigError(
                f"{path} is a {source.kind} model, and only language models can be healed; train "
                "it further with `suffice compare`, or with suffice.train.fit and your own batches."
            )
    if student.kind != "suffice":
        raise ConfigError(
            f"{converted} is a {student.kind} model; give the folder that `suffice "
            "convert` wrote of it, and this one as --teacher."
        )
    tokenizer = teacher.tokenizer
    if tokenizer is not None and tokenizer.fingerprint != student.tokenizer.fingerprint:
        raise ConfigError(
            f"the tokenizers of {converted} and {original} differ; give the model "
            "that it was converted from."
        )
