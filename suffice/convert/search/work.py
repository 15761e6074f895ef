"""What a search has found so far, one file for each thing, so that a stopped search goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor

from suffice import checkpoint
from suffice.errors import CheckpointError, ConfigError
from suffice.measure.storage import write_atomic

ASKED = "asked"


class Work:
    """A folder of results by name; without a folder they are kept in memory alone.

    Args:
        folder: where; made when something is written.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.known: dict[str, Any] = {}

    def claim(self, asked: dict[str, Any], *, resume: bool) -> None:
        """Take the folder for a search, or go on with the one it holds.

        Args:
            asked: what a result depends on.
            resume: whether to go on.

        Raises:
            ConfigError: if it holds another search, or one and none is to go on.
        """
        found = self.read(ASKED)
        if found is not None and not resume:
            raise ConfigError(
                f"{self.folder} holds a search already; go on with it by --resume, or give another "
                "--out."
            )
        if found is not None and (other := [key for key in asked if found.get(key) != asked[key]]):
            raise ConfigError(
                f"{self.folder} holds a search with another {other[0]}; ask for the same, or give "
                "another --out."
            )
        self.write(ASKED, asked)

    def read(self, name: str) -> Any:
        """Return what was written under a name; None if nothing was.

        Raises:
            CheckpointError: if the file is damaged.
        """
        if self.folder is None:
            return self.known.get(name)
        path = self._path(name, "json")
        if not path.exists():
            return None
        try:
            return json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error!s:.100}); delete it, and it will be made again."
            ) from error

    def write(self, name: str, data: Any) -> None:
        """Write plain data under a name, whole or not at all."""
        if self.folder is None:
            self.known[name] = data
            return
        write_atomic(self._path(name, "json"), json.dumps(data, allow_nan=False) + "\n")

    def tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return tensors and facts under a name; None if there are none.

        Raises:
            CheckpointError: if the file is damaged.
        """
        if self.folder is None:
            return self.known.get(f"{name} tensors")
        path = self._path(name, "safetensors")
        return checkpoint.load(path) if path.exists() else None

    def keep(self, name: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write tensors and facts under a name, whole or not at all."""
        if self.folder is None:
            self.known[f"{name} tensors"] = (tensors, facts)
            return
        path = self._path(name, "safetensors")
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.save(path, tensors, facts)

    def _path(self, name: str, kind: str) -> Path:
        return self.folder / f"{'/'.join(quote(part, safe='') for part in name.split('/'))}.{kind}"


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return the sha256 of some tensors' shapes and numbers.

    Example:
        >>> import torch
        >>> one = torch.zeros(2, 3)
        >>> [fingerprint([one]) == fingerprint([other]) for other in (one.clone(), one.T)]
        [True, False]
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
