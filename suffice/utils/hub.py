"""Download from and upload to the Hugging Face hub: `hf:ORG/NAME[@REVISION]`."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from suffice.errors import CheckpointError, ConfigError, installed_for

PREFIX = "hf:"
REFERENCE = re.compile(r"hf:(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
DOWNLOAD_PATTERNS = ("*.safetensors", "*.json", "vocab.txt", "merges.txt", "chat_template.jinja")
LEFT = ("onnx/*", "openvino/*", "original/*", "*/*.safetensors", "consolidated*")
"""Files of a repository that are fetched, and those among them that are not: no pickle, no code."""


def is_reference(path: Path | str) -> bool:
    """Return whether a path names a model of the hub instead of a folder."""
    return str(path).startswith(PREFIX)


def local(path: Path | str, files: tuple[str, ...] = DOWNLOAD_PATTERNS) -> Path:
    """Return the folder of a model: "hf:ORG/NAME[@REVISION]" fetched, any other path as it is.

    The hub's HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE hold; `files` are patterns.
    """
    if not is_reference(path):
        return Path(path)
    parts = REFERENCE.fullmatch(str(path))
    if parts is None:
        raise ConfigError(f"{str(path)!r:.80} is not on the hub; give hf:ORG/NAME[@REVISION].")
    with installed_for(str(path), "hub"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    try:
        folder = snapshot_download(
            parts["name"],
            revision=parts["revision"],
            allow_patterns=list(files),
            ignore_patterns=list(LEFT),
        )
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{path} is not in the cache of the hub, and the hub cannot be reached; connect, or "
            "give the folder of a model."
        ) from error
    except _errors() as error:
        raise CheckpointError(
            f"{path} cannot be fetched ({_first_line(error)}); check its"
            " name and revision, and HF_TOKEN where it is not public."
        ) from error
    return Path(folder)


def origin(path: Path | str, folder: Path) -> dict[str, dict[str, str]]:
    """Return the entry "hub" of facts for a fetched model: its repository and commit; else {}."""
    parts = REFERENCE.fullmatch(str(path))
    return {"hub": {"repository": parts["name"], "revision": folder.name}} if parts else {}


def check_name(name: str) -> None:
    """Raise ConfigError unless it is ORG/NAME."""
    if REFERENCE.fullmatch(f"{PREFIX}{name}") is None or "@" in name:
        raise ConfigError(f"{name!r:.80} is not a repository on the hub; give ORG/NAME.")


def upload(folder: Path | str, name: str, *, private: bool = True) -> str:
    """Write a folder of this library to a repository of the hub, and return its address.

    Nothing is sent anywhere unless this is called, with the token of `hf auth login` or HF_TOKEN.
    """
    check_name(name)
    with installed_for(name, "hub"):
        from huggingface_hub import HfApi
    api = HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=Path(folder), commit_message="Written by suffice"
        )
    except _errors() as error:
        raise CheckpointError(
            f"{folder} cannot be uploaded to {name} ({_first_line(error)}); log in by `hf auth "
            "login`, with a token that may write there."
        ) from error
    return str(address)


def _errors() -> tuple[type[Exception], ...]:
    from huggingface_hub.utils import get_session

    client = import_module(type(get_session()).__module__.partition(".")[0])
    return OSError, ValueError, RuntimeError, client.HTTPError


def _first_line(error: Exception) -> str:
    return f"{str(error).strip().partition(chr(10))[0]:.200}"
