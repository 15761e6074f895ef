"""Checkpoints in the folder a user chose."""

from __future__ import annotations

import os
from pathlib import Path

from suffice.models.folder import CONFIG, WEIGHTS

DEEPEST, MOST = 4, 300  # folders inside each other; checkpoints in one list
CELLS = "models"  # where `suffice compare` leaves what it trained


def checkpoints(root: Path | None) -> list[str]:
    """List what can be opened, by its name below the folder; links are not followed.

    Folders of a model, files of the models of a comparison, and .bin files of llama2.c.
    """
    if root is None:
        return []
    inside, names = root.resolve(), []
    for here, folders, files in os.walk(inside):
        path = Path(here).relative_to(inside)
        if CONFIG in files and any(name.endswith(".safetensors") for name in files):
            names.append(path.as_posix())
            folders.clear()
        else:
            kind = ".safetensors" if path.name == CELLS or inside.name == CELLS else ".bin"
            own = [name for name in sorted(files) if name.endswith(kind) and name != WEIGHTS]
            names += [(path / name).as_posix() for name in own if not name.startswith("tok")]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if len(path.parts) >= DEEPEST or len(names) >= MOST:
            folders.clear()
    return names[:MOST]
