"""Checks that an export computes the same as the model, before it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from suffice.errors import CheckpointError, ConfigError
from suffice.export.graph import (
    LOGITS,
    TOKENS,
    VALID,
    ClassifierGraph,
    DecoderGraph,
    call_arguments,
)
from suffice.generate.generate import max_length
from suffice.models import LM
from suffice.models.architectures import hugging_face
from suffice.models.vit import ViT

TOLERANCE = 1e-4  # of the largest logit, or of 1
PASTS, CHUNKS, BATCHES = (0, 1, 7), (1, 5), (1, 3)

Call = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]
Case = tuple[Tensor, Tensor]  # logits of the export and of the model, at real tokens


@dataclass(frozen=True, kw_only=True)
class Parity:
    cases: int
    difference: float  # of logits, the largest

    def to_json(self) -> dict[str, Any]:
        return {"against": "the model, eager", "calls": self.cases, "difference": self.difference}


@torch.no_grad()
def check_graph(
    call: Call,
    module: DecoderGraph | ClassifierGraph,
    model: nn.Module,
    *,
    pasts: Sequence[int] = PASTS,
) -> Parity:
    """Compare a graph with its model."""
    names = [port.name for port in module.outputs()]

    def outputs(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(names, call(feeds), strict=True))

    if isinstance(module, DecoderGraph):
        cases = _decoder_cases(outputs, module, model, pasts)
    else:
        cases = _classifier_cases(outputs, module, model)
    return _compare(cases, "run the model with `suffice generate` instead")


@torch.no_grad()
def check_model(stock: nn.Module, model: nn.Module) -> Parity:
    """Compare two models on inputs of several lengths."""
    draws, length = torch.Generator().manual_seed(0), model.config.length
    batches = [(batch, n) for batch in (1, 3) for n in (1, min(7, length), min(64, length))]
    inputs = (_inputs(model, batch, n, draws) for batch, n in batches)
    return _compare(((stock(x), model(x)) for x in inputs), "export it to onnx")


def _compare(cases: Iterator[Case], advice: str) -> Parity:
    differences, largest = [], 1.0
    for logits, wanted in cases:
        differences.append((logits - wanted).abs().max())
        largest = max(largest, float(wanted.abs().max()))
    worst = float(torch.stack(differences).max())  # NaN if one of them is
    if not worst <= TOLERANCE * largest:
        raise CheckpointError(
            f"the export does not compute the same as the model: logits differ by {worst:.1e}; "
            f"nothing was kept; {advice}."
        )
    return Parity(cases=len(differences), difference=worst)


def _inputs(model: nn.Module, batch: int, length: int, draws: torch.Generator) -> Tensor:
    config = model.config
    if isinstance(model, ViT):
        size = (batch, config.channels, config.image_size, config.image_size)
        return torch.randn(size, generator=draws)
    return torch.randint(config.vocabulary_size, (batch, length), generator=draws)


def _decoder_cases(
    call: Callable, decoder: DecoderGraph, lm: nn.Module, pasts: Sequence[int]
) -> Iterator[Case]:
    draws, longest = torch.Generator().manual_seed(0), max_length(lm)
    state = [port for port in decoder.inputs() if port.becomes]
    sizes = [(batch, past, chunk) for batch in BATCHES for past in pasts for chunk in CHUNKS]
    for batch, past, chunk in sizes:
        if longest is not None and past + chunk > longest:
            continue
        tokens = _inputs(lm, batch, past + chunk, draws)
        valid = _left_padded(batch, past + chunk)
        free = {"batch": batch, "past": 0}
        feeds = {
            port.name: np.zeros([free.get(size, size) for size in port.shape], dtype=port.dtype)
            for port in state
        }
        for start, stop in ((0, past), (past, past + chunk)):
            if start == stop:
                continue
            feeds |= {TOKENS: tokens[:, start:stop].numpy(), VALID: valid[:, start:stop].numpy()}
            outputs = call(feeds)
            feeds |= {port.name: outputs[port.becomes] for port in state}
        real = valid[:, past:]
        logits = torch.from_numpy(np.array(outputs[LOGITS]))
        yield logits[real], lm(tokens, valid=valid)[:, past:][real]


def _left_padded(batch: int, length: int) -> Tensor:
    left = 2 * torch.arange(batch)[:, None]
    return torch.arange(length)[None] >= left.clamp(max=length - 1)


def _classifier_cases(call: Callable, module: ClassifierGraph, model: nn.Module) -> Iterator[Case]:
    draws, length = torch.Generator().manual_seed(0), model.config.length
    longest = length + (getattr(model.config, "pooling", "") == "mean" and not module.images)
    lengths = (1,) if module.images else (1, min(7, length), longest)
    for batch, tokens in ((batch, n) for batch in BATCHES for n in lengths):
        x = _inputs(model, batch, tokens, draws)
        feeds, valid = {module.inputs()[0].name: x.numpy()}, None
        if module.masks:
            valid = _left_padded(batch, tokens).flip(1)
            feeds[VALID] = valid.numpy()
        if not module.images:
            x, valid = model.last_of_row(x), model.last_of_row(valid)
        yield torch.from_numpy(np.array(call(feeds)[LOGITS])), model(x, valid)


class EagerSession:
    """A language model with the inputs and outputs of its graph, computed by torch."""

    def __init__(self, folder: Path) -> None:
        model = hugging_face.read(folder, hugging_face.read_config(folder))
        if not isinstance(model, LM):
            raise ConfigError(
                f"{folder} holds a classifier, which generates no text; load it with transformers."
            )
        self.decoder = DecoderGraph(model)
        self.ports = self.decoder.inputs()
        self.state: list[dict[str, Any]] = [port.to_json() for port in self.ports if port.becomes]
        self.outputs = [port.name for port in self.decoder.outputs()]

    @torch.no_grad()
    def call(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        arrays = (np.ascontiguousarray(feeds[port.name]) for port in self.ports)
        arguments = call_arguments(self.decoder, [torch.from_numpy(array) for array in arrays])
        return [output.numpy() for output in self.decoder(*arguments)]
