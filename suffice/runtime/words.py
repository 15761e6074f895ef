"""Text to ids and back for an exported model, by the tokenizers library alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suffice.errors import CheckpointError, ConfigError, DataError


class Words:
    """The tokenizer of an exported model.

    Args:
        folder: of the export.
        manifest: of the folder, checked.

    Raises:
        ConfigError: if the model has no tokenizer, or the tokenizers library is not installed.
        CheckpointError: if its file is none that the library reads.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        told = manifest.get("tokenizer")
        if told is None:
            raise ConfigError(
                f"{folder} has no tokenizer, so no text can be read; call its graph with ids."
            )
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ConfigError(
                "reading text needs the tokenizers library; install it with "
                "pip install 'suffice[export]'."
            ) from error
        path = folder / told["file"]
        try:
            self._library = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise CheckpointError(f"{path} is no tokenizer ({error!s:.200}).") from error
        self.size = self._library.get_vocab_size()
        self.begin, self.end = told.get("begin"), told.get("end")

    def ids(self, prompt: str) -> list[int]:
        """Return the ids of a prompt, the token that begins a text before it.

        Raises:
            ConfigError: if the prompt is empty and no token begins a text.
            DataError: if it holds what no token spells.
        """
        try:
            found = self._library.encode(prompt, add_special_tokens=False).ids
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise DataError(
                f"the prompt holds what the tokenizer cannot spell ({error!s:.120}); write it "
                "with the characters the model was trained on."
            ) from error
        ids = [*([] if self.begin is None else [self.begin]), *found]
        if not ids and self.end is not None:
            return [self.end]  # what stands before a text stands behind another
        if not ids:
            raise ConfigError("--prompt is empty, and no token begins a text here; give some text.")
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of some ids; special tokens show as their names.

        Raises:
            ConfigError: if an id is not in the vocabulary.
        """
        if wrong := [id_ for id_ in ids if not 0 <= id_ < self.size]:
            raise ConfigError(
                f"id {wrong[0]} is not in the vocabulary; the tokenizer has ids of 0 to "
                f"{self.size - 1:,}."
            )
        return self._library.decode(ids, skip_special_tokens=False)
