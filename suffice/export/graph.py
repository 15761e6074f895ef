"""Models as traceable graphs, and their files: ONNX.

The state of a model is a list of tensors. Files hold no traces of the machine that wrote them.

Letters: B batch, H query heads, G key/value heads, T queries, P earlier keys, D and E head widths,
V vocabulary, N classes.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from suffice.errors import CheckpointError, ConfigError, installed_for
from suffice.export.layers import CallPositions, GraphAttention, state_shapes, with_linear_attention
from suffice.models import LM
from suffice.models.classifier import Classifier
from suffice.models.vit import ViT
from suffice.runtime import open_graph

TOKENS, VALID, LOGITS, POSITIONS, IMAGES = "tokens", "valid", "logits", "places", "images"
EXAMPLE_SIZES = {"batch": 2, "chunk": 3, "past": 4, "length": 3}  # from 2; 0 and 1 may be fixed
ONNX_FILE = "model.onnx"
OPSET = 20
MAX_WEIGHTS = (1 << 31) - (1 << 20)  # bytes in one ONNX file: protobuf's limit, less the graph


@dataclass(frozen=True, kw_only=True)
class Port:
    name: str
    dtype: str  # "int64", "bool" or "float32"
    shape: tuple[int | str, ...]  # a name where a size is dynamic
    holds: str
    becomes: str = ""  # of a state, the output that is this input of the next call

    def to_json(self) -> dict[str, Any]:
        axes = {str(axis): size for axis, size in enumerate(self.shape) if isinstance(size, str)}
        entry = {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}
        entry |= {"dynamic_axes": axes, "holds": self.holds}
        return entry | ({"becomes": self.becomes} if self.becomes else {})


def logits_port(lm: LM, tokens: str) -> Port:
    return Port(
        name=LOGITS,
        dtype="float32",
        shape=("batch", tokens, lm.config.vocabulary_size),
        holds="at each token, of the one that follows it; at padding they mean nothing",
    )


class DecoderGraph(nn.Module):
    """A language model whose state is a list of tensors.

    tokens: int [B, T]; valid: bool [B, T], True = a real token; earlier: int [B, P], positions
    of the earlier tokens, -1 = padding; past: keys and values [B, G, P, D], or the state of a
    recurrence [B, H, D, E] and the last inputs of its convolution -> logits [B, T, V], then the
    positions and the past with the new tokens
    """

    def __init__(self, lm: LM) -> None:
        super().__init__()
        self.lm = copy.deepcopy(lm)
        _replace_attention(self.lm)
        self.state = [state_shapes(spec) for spec in self.lm.specs]

    def forward(
        self, tokens: Tensor, valid: Tensor, earlier: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        tokens = tokens.masked_fill(~valid, 0)
        # amax needs at least one element, and there may be no past
        first = torch.full_like(tokens[:, :1], -1)
        next_position = torch.cat([first, earlier], dim=1).amax(dim=1) + 1
        real = valid.long()
        queries = next_position[:, None] + real.cumsum(dim=1) - real
        keys = torch.cat([earlier, queries.masked_fill(~valid, -1)], dim=1)
        positions = CallPositions(queries, keys, valid)
        embedding = self.lm.embedding
        x = embedding.tokens(tokens)
        if embedding.position_type != "none":
            x = x + embedding.at(queries, x)
        parts = iter(past)
        present: list[tuple[Tensor, ...]] = []  # of each layer
        for block, names in zip(self.lm.blocks, self.state, strict=True):
            own = tuple(next(parts) for _ in names)
            cached = block.attention.past(own, present)

            def attend(x: Tensor, layer: Any = block.attention, past: Any = cached) -> Tensor:
                attended, kept = layer.step(x, positions, past)
                present.append(kept)
                return attended

            x = block.run(x, attend)
        return self.lm.logits(self.lm.norm(x)), keys, *(one for row in present for one in row)

    def inputs(self) -> list[Port]:
        chunk = ("batch", "chunk")
        padding = "True = a real token; padding may stand anywhere and hold any id"
        return [
            Port(name=TOKENS, dtype="int64", shape=chunk, holds="ids"),
            Port(name=VALID, dtype="bool", shape=chunk, holds=padding),
            *(
                Port(
                    name=f"past.{name}",
                    dtype=dtype,
                    shape=tuple("past" if size == "total" else size for size in shape),
                    holds=holds,
                    becomes=f"present.{name}",
                )
                for name, dtype, shape, holds in self._state()
            ),
        ]

    def outputs(self) -> list[Port]:
        return [
            logits_port(self.lm, "chunk"),
            *(
                Port(name=f"present.{name}", dtype=dtype, shape=shape, holds=holds)
                for name, dtype, shape, holds in self._state()
            ),
        ]

    def _state(self) -> Iterator[tuple[str, str, tuple[int | str, ...], str]]:
        yield POSITIONS, "int64", ("batch", "total"), "position of each token read, -1 = padding"
        for number, shapes in enumerate(self.state):
            for name, shape in shapes.items():
                yield f"{number}.{name}", "float32", shape, name.replace("_", " ")


class ClassifierGraph(nn.Module):
    """A Classifier or ViT: tokens int [B, T], valid bool [B, T], or images [B, C, S, S] -> [B, N].

    Rows of tokens may begin with a token that is not read, see `Classifier.last_of_row`.
    """

    def __init__(self, model: Classifier | ViT) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        _replace_attention(self.model)
        self.images = isinstance(model, ViT)
        self.masks = not self.images and not model.config.reads_padding

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        if not self.images:
            x, valid = self.model.last_of_row(x), self.model.last_of_row(valid)
        return self.model(x, valid)

    def inputs(self) -> list[Port]:
        config = self.model.config
        if self.images:
            shape = ("batch", config.channels, config.image_size, config.image_size)
            holds = "pixels, normalised as in training"
            return [Port(name=IMAGES, dtype="float32", shape=shape, holds=holds)]
        shape = ("batch", "length")
        ports = [Port(name=TOKENS, dtype="int64", shape=shape, holds="ids")]
        if self.masks:
            ports.append(Port(name=VALID, dtype="bool", shape=shape, holds="True = a real token"))
        return ports

    def outputs(self) -> list[Port]:
        config = self.model.config
        shape = ("batch", config.num_classes if self.images else config.outputs)
        if not self.images and config.pooling == "none":
            shape = ("batch", "length", config.outputs)
        return [Port(name=LOGITS, dtype="float32", shape=shape, holds="of the classes")]


def _replace_attention(model: nn.Module) -> None:
    for number, block in enumerate(model.blocks):
        try:
            block.attention = GraphAttention(block.attention)
        except ConfigError as error:
            raise ConfigError(f"layer {number}: {error}") from error


def graph_module(model: nn.Module) -> DecoderGraph | ClassifierGraph:
    return DecoderGraph(model) if isinstance(model, LM) else ClassifierGraph(model)


def reach(lm: LM) -> int | None:
    """Return how many of the latest tokens any layer attends to, its own included; None: all."""
    reaches = [spec.pattern.reach if spec.lane == "pairs" else 1 for spec in lm.specs]
    if any(one is None for one in reaches) or any(
        "mixing" in spec.beyond_pairs for spec in lm.specs
    ):
        return None
    return max(reaches)


def trace(module: DecoderGraph | ClassifierGraph) -> torch.export.ExportedProgram:
    if isinstance(module, DecoderGraph) and module.lm.config.experts is not None:
        raise ConfigError(
            "a graph would compute all experts of a mixture for every token; run it with `suffice "
            "generate`, or export it to hf."
        )
    ports = module.inputs()
    examples = call_arguments(module, list(map(_example, ports)))
    dynamic = call_arguments(module, list(map(_dynamic_axes, ports)))
    try:
        with torch.no_grad(), quiet():
            return torch.export.export(module, examples, dynamic_shapes=dynamic, strict=False)
    except Exception as error:  # noqa: BLE001 - torch has no separate class for these
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"torch cannot trace this model for every length ({reason:.300}); run it with "
            "`suffice generate`, or export a layer composition without what is named there."
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    root = logging.getLogger("torch")
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)


def _example(port: Port) -> Tensor:
    sizes = [EXAMPLE_SIZES[size] if isinstance(size, str) else size for size in port.shape]
    if port.dtype == "bool":
        return torch.ones(sizes, dtype=torch.bool)
    if port.dtype == "int64":
        return torch.arange(sizes[1]).expand(sizes).clone() % 2
    return torch.zeros(sizes)


def _dynamic_axes(port: Port) -> dict[int, object]:
    axes = [axis for axis, size in enumerate(port.shape) if isinstance(size, str)]
    return dict.fromkeys(axes, torch.export.Dim.DYNAMIC)


def call_arguments(module: nn.Module, parts: Sequence) -> tuple:
    """Return the arguments of a call from its ports; a decoder takes its past as one list."""
    if isinstance(module, DecoderGraph):
        return (*parts[:3], list(parts[3:]))
    return tuple(parts)


def check_packages() -> None:
    for name in ("onnxscript", "onnxruntime"):
        _package(name)


def write_onnx(module: DecoderGraph | ClassifierGraph, path: Path) -> None:
    ir = _package("onnx_ir")
    size = sum(one.numel() * one.element_size() for one in module.parameters())
    if size > MAX_WEIGHTS:
        raise CheckpointError(
            f"the weights are {size:,} bytes, and one ONNX file holds at most {MAX_WEIGHTS:,}; "
            "export a smaller model, or to hf."
        )
    inputs, outputs = module.inputs(), module.outputs()
    graph = trace(module)
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                with_linear_attention(graph),
                (),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=[port.name for port in inputs],
                output_names=[port.name for port in outputs],
            )
    except torch.onnx.errors.OnnxExporterError as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise ConfigError(
            f"ONNX has no operators for this model ({reason:.300}); run it with `suffice generate`."
        ) from error
    model = program.model
    values, ports = (*model.graph.inputs, *model.graph.outputs), (*inputs, *outputs)
    for value, port in zip(values, ports, strict=True):
        value.shape = ir.Shape(port.shape)  # with the manifest's names of dynamic sizes
    _strip_metadata(model)
    ir.save(model, path)


def _package(name: str) -> ModuleType:
    with installed_for("exporting to onnx", "export"):
        return import_module(name)


def _strip_metadata(model: Any) -> None:
    model.doc_string, model.producer_name, model.producer_version = None, "suffice", None
    model.metadata_props.clear()
    for graph in (model.graph, *model.functions.values()):
        nodes = list(graph.all_nodes())
        values = [*graph.inputs, *getattr(graph, "initializers", {}).values()]
        values += [value for node in nodes for value in node.outputs]
        for part in (graph, *nodes, *values):
            part.doc_string = None
            part.metadata_props.clear()


def call_onnx(path: Path) -> Callable[..., Sequence[np.ndarray]]:
    """Return a function that runs the graph of a file in ONNX Runtime."""
    session = open_graph(path)
    return lambda feeds: session.run(None, dict(feeds))
