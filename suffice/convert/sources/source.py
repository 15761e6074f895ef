"""What a checkpoint of any kind becomes here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from suffice.text import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model of this library, and what else its files said.

    Args:
        model: with Standard attention, in evaluation; of a folder of this library whatever it had.
        kind: "suffice", "llama2.c", or the architecture that a config.json of transformers names.
        tokenizer: of its tokens; None for a model that reads none, or where none was found.
        facts: entries for the config.json of a folder that it is written to.
    """

    model: nn.Module
    kind: str
    tokenizer: Tokenizer | None = None
    facts: dict[str, Any] = field(default_factory=dict)
