"""Whether a graph computes what the model does: asked of every export before it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from suffice.convert.sources import hugging_face
from suffice.errors import CheckpointError, ConfigError
from suffice.export.graph import LOGITS, TOKENS, VALID, Decoder, Whole, arranged
from suffice.generate.generate import max_length
from suffice.models import LM

Call = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]
CLOSE = 1e-4  # of the largest logit, or of 1
PASTS, CHUNKS, BATCHES = (0, 1, 7), (1, 5), (1, 3)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a comparison found.

    Args:
        cases: how many calls were compared.
        difference: the largest, of logits at real tokens.
    """

    cases: int
    difference: float

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {"against": "the model, eager", "calls": self.cases, "difference": self.difference}


@torch.no_grad()
def check(
    call: Call,
    module: Decoder | Whole,
    model: nn.Module,
    *,
    pasts: Sequence[int] = PASTS,
) -> Checked:
    """Compare a graph with the model it was made of.

    Args:
        call: runs the graph.
        module: which the graph was made of.
        model: eager, as it was opened.
        pasts: tokens read before the call that is compared.

    Raises:
        CheckpointError: if the logits differ.
    """
    names = [port.name for port in module.outputs()]
    cases = _texts(module, model, pasts) if isinstance(module, Decoder) else _wholes(module, model)
    worst, count, largest = 0.0, 0, 1.0
    for feeds, wanted, real in cases(lambda given: dict(zip(names, call(given), strict=True))):
        difference = (torch.from_numpy(np.array(feeds)) - wanted)[real]
        worst = max([worst, *difference.abs().flatten().tolist()])
        largest = max([largest, *wanted[real].abs().flatten().tolist()])
        count += 1
    if not worst <= CLOSE * largest:
        raise CheckpointError(
            f"the graph does not compute what the model does: logits differ by {worst:.1e}; "
            "nothing was written. Run the model with `suffice generate`."
        )
    return Checked(cases=count, difference=worst)


def _texts(decoder: Decoder, lm: nn.Module, pasts: Sequence[int]) -> Callable[..., Iterator]:
    """Return what gives logits of a graph, of the model, and where they count."""
    draws = torch.Generator().manual_seed(0)
    most, size = max_length(lm), lm.config.vocabulary_size
    state = [port for port in decoder.inputs() if port.becomes]

    def cases(call: Callable) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
        for batch in BATCHES:
            for past in pasts:
                for chunk in CHUNKS:
                    if most is not None and past + chunk > most:
                        continue
                    tokens = torch.randint(size, (batch, past + chunk), generator=draws)
                    valid = _valid(batch, past + chunk)
                    wanted = lm(tokens, valid=valid)[:, past:]
                    feeds = {port.name: _nothing(port, batch) for port in state}
                    spans = ((0, past), (past, past + chunk)) if past else ((0, chunk),)
                    for a, b in spans:
                        feeds |= {TOKENS: tokens[:, a:b].numpy(), VALID: valid[:, a:b].numpy()}
                        found = call(feeds)
                        feeds |= {port.name: found[port.becomes] for port in state}
                    yield found[LOGITS], wanted, valid[:, past:]

    return cases


def _valid(batch: int, length: int) -> Tensor:
    """Return rows padded on the left by none, two and four tokens, as far as they have them."""
    left = 2 * torch.arange(batch)[:, None]
    return torch.arange(length)[None] >= left.clamp(max=length - 1)


def _nothing(port: Any, batch: int) -> np.ndarray:
    free = {"batch": batch, "past": 0}
    return np.zeros([free.get(size, size) for size in port.shape], dtype=port.dtype)


def _wholes(module: Whole, model: nn.Module) -> Callable[..., Iterator]:
    draws = torch.Generator().manual_seed(0)
    config = model.config

    def cases(call: Callable) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
        for batch in BATCHES:
            everywhere = torch.ones(batch, dtype=torch.bool)
            if module.pictures:
                size = (batch, config.channels, config.image_size, config.image_size)
                images = torch.randn(size, generator=draws)
                (name,) = (port.name for port in module.inputs())
                yield call({name: images.numpy()})[LOGITS], model(images), everywhere
                continue
            for length in (1, min(7, config.length), config.length):
                tokens = torch.randint(config.vocabulary_size, (batch, length), generator=draws)
                feeds, valid = {TOKENS: tokens.numpy()}, None
                if module.masks:
                    valid = _valid(batch, length).flip(1)
                    feeds[VALID] = valid.numpy()
                yield call(feeds)[LOGITS], model(tokens, valid), everywhere

    return cases


class Eager:
    """A language model with the inputs and outputs of its graph, computed by torch.

    Args:
        folder: of an export to hf.

    Raises:
        ConfigError: if the model writes no text.
        CheckpointError: if it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        model = hugging_face.read(folder, hugging_face.read_config(folder))
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
