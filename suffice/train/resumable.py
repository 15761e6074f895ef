"""Whether a training's checkpoint is where it must be before the training begins."""

from __future__ import annotations

import os
from pathlib import Path

from suffice.errors import CheckpointError, ConfigError


def check_place(checkpoint: Path | None, *, resume: bool) -> None:
    """Refuse a checkpoint that cannot be resumed or written.

    Raises:
        ConfigError: if resume has no checkpoint.
        CheckpointError: if the checkpoint is not there to resume, or cannot be written.
    """
    if checkpoint is None:
        if resume:
            raise ConfigError("resume=True without a checkpoint; give the file to resume from.")
        return
    if resume and not checkpoint.exists():
        raise CheckpointError(
            f"{checkpoint} does not exist, so there is nothing to resume; run without resume."
        )
    if not os.access(checkpoint.absolute().parent, os.W_OK | os.X_OK):
        raise CheckpointError(
            f"the folder of {checkpoint} does not exist or cannot be written; make it, or give "
            "another."
        )
