"""Pictures and archives of them, made here: no test has a picture of a data set."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, side: int = 8, *, form: str = "JPEG", mode: str = "RGB") -> bytes:
    """The bytes of a smooth random picture."""
    few = np.random.default_rng(seed).integers(0, 256, size=(2, 2, len(mode)), dtype=np.uint8)
    small = Image.fromarray(few if len(mode) > 1 else few[:, :, 0], mode=None)
    buffer = io.BytesIO()
    small.resize((side, side), Image.Resampling.BILINEAR).save(buffer, format=form)
    return buffer.getvalue()


def packed(files: dict[str, bytes], *others: tarfile.TarInfo) -> bytes:
    """A .tar.gz of files, and of members without content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in others:
            archive.addfile(info)
    return buffer.getvalue()


def put(root: Path, path: str, content: bytes) -> str:
    """Write a file below a folder; returns its sha256."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content)
    return hashlib.sha256(content).hexdigest()
