"""A healed model as a folder: what `suffice train` leaves, with the report beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from suffice.errors import CheckpointError
from suffice.files import replacing
from suffice.heal.heal import Healed
from suffice.models import folder
from suffice.text import Tokenizer

REPORT = "healing.json"


def save(out: Path, made: Healed, tokenizer: Tokenizer, **facts: Any) -> None:
    """Write a healed model; the report comes first and the weights last.

    Args:
        out: the folder, which exists.
        made: the model and its report.
        tokenizer: of its tokens.
        **facts: what else is known.

    Raises:
        CheckpointError: if something cannot be written.
    """
    text = json.dumps(made.report.to_json(), indent=1, allow_nan=False) + "\n"
    try:
        with replacing(out / REPORT) as temporary:
            temporary.write_text(text, encoding="ascii", newline="\n")
    except OSError as error:
        raise CheckpointError(
            f"cannot write {out} ({error.strerror or error}); free space, or give another --out."
        ) from error
    folder.save(out, made.model, tokenizer, **facts)
