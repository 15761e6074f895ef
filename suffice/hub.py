"""Models of the Hugging Face hub: `hf:ORG/NAME[@REVISION]` becomes a folder of this machine."""

from __future__ import annotations

import re
from pathlib import Path

from suffice.errors import CheckpointError, ConfigError

PREFIX = "hf:"
REFERENCE = re.compile(r"hf:(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
FETCHED = ("*.safetensors", "*.json", "vocab.txt", "merges.txt")
LEFT = ("onnx/*", "openvino/*", "original/*", "*/*.safetensors", "consolidated*")
"""Files of a repository that are fetched, and those among them that are not: no pickle, no code."""


def is_reference(path: Path | str) -> bool:
    """Return whether a path names a model of the hub instead of a folder."""
    return str(path).startswith(PREFIX)


def local(path: Path | str) -> Path:
    """Return the folder of a model: of the hub after fetching it, any other path as it is.

    What the cache of the hub (HF_HOME) holds already is not fetched again. HF_ENDPOINT and HF_TOKEN
    are honoured. With HF_HUB_OFFLINE=1 only the cache is read.

    Args:
        path: a path, or "hf:ORG/NAME", "hf:ORG/NAME@REVISION" with a branch, a tag or a commit.

    Raises:
        CheckpointError: if the model is neither there nor in the cache.
        ConfigError: if the reference is malformed, or huggingface_hub is not installed.
    """
    if not is_reference(path):
        return Path(path)
    parts = REFERENCE.fullmatch(str(path))
    if parts is None:
        raise ConfigError(f"{str(path)!r:.80} is no model of the hub; give hf:ORG/NAME[@REVISION].")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError as error:
        raise ConfigError(
            f"{path} needs huggingface_hub, which is not installed: pip install 'suffice[hub]'."
        ) from error
    try:
        folder = snapshot_download(
            parts["name"],
            revision=parts["revision"],
            allow_patterns=list(FETCHED),
            ignore_patterns=list(LEFT),
        )
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{path} is not in the cache of the hub, and the hub cannot be reached; connect, or "
            "give the folder of a model."
        ) from error
    except (OSError, ValueError, RuntimeError) as error:  # the library's own derive from these
        raise CheckpointError(
            f"{path} cannot be fetched ({str(error).strip().partition(chr(10))[0]:.200}); check its"
            " name and revision, and HF_TOKEN where it is not public."
        ) from error
    return Path(folder)


def origin(path: Path | str, folder: Path) -> dict[str, dict[str, str]]:
    """Return the entry "hub" of facts for a fetched model: its repository and commit; else {}."""
    parts = REFERENCE.fullmatch(str(path))
    return {"hub": {"repository": parts["name"], "revision": folder.name}} if parts else {}
