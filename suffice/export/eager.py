"""An export for transformers, read back and stepped through here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from suffice.convert.sources import hugging_face
from suffice.errors import ConfigError
from suffice.export.decoder import Decoder
from suffice.export.traced import arranged
from suffice.models import LM


class Eager:
    """A language model with the inputs and outputs of its graph, computed by torch.

    Args:
        folder: of an export to hf.

    Raises:
        ConfigError: if the model writes no text.
        CheckpointError: if it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        model = hugging_face.read(folder, hugging_face.config_in(folder))
        if not isinstance(model, LM):
            raise ConfigError(
                f"{folder} holds a model that classifies and writes no text; load it with "
                "transformers."
            )
        self.decoder = Decoder(model)
        self.ports = self.decoder.inputs()
        self.state: list[dict[str, Any]] = [one.to_json() for one in self.ports if one.becomes]
        self.outputs = [port.name for port in self.decoder.outputs()]

    @torch.no_grad()
    def call(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs for the inputs by name."""
        given = [torch.from_numpy(np.ascontiguousarray(feeds[port.name])) for port in self.ports]
        return [one.numpy() for one in self.decoder(*arranged(self.decoder, given))]
