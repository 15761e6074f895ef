"""A small language model in a folder, and the text that it records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suffice import AttentionSpec
from suffice.models import LM, LMConfig, folder
from suffice.testing import drawn
from suffice.text import Characters

TEXT = "to be or not to be, that is the question. " * 60


def written(place: Path, spec: AttentionSpec, *, facts: Any = None, **sizes: Any) -> LM:
    """Write `text.txt` and the folder `run`, a drawn model of its characters, and return it."""
    (place / "text.txt").write_text(TEXT)
    tokenizer, width = Characters.of([TEXT]), spec.d_model
    defaults = {"length": 12, "d_model": width, "depth": 1, "mlp_width": width}
    config = LMConfig(vocabulary_size=tokenizer.vocabulary_size, **defaults | sizes)
    lm = drawn(config.build(spec), seed=1).eval()
    folder.save(place / "run", lm, tokenizer, corpus=str(place / "text.txt"), **facts or {})
    return lm
