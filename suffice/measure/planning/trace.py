"""Traces one training step on fake tensors: memory, operations and collectives.

The model, the loss, the optimiser and the sharding are those of the training itself; nothing is
computed or allocated. Attention runs through torch's fused op, or through `blocked` if the pattern
leaves pairs out, as GPU kernels do: neither forms the weights of all pairs.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from suffice.errors import ConfigError, StateError, check_known
from suffice.kernels import Softmax
from suffice.layers import Attention, Dropout
from suffice.models import CONFIGURATIONS, ClassifierConfig, LMConfig, ViTConfig
from suffice.ops import scan
from suffice.recipes import ALL_RECIPES, LM_RECIPES, Recipe, lm_recipe, recipe
from suffice.recipes.base import Sizes
from suffice.spec import AttentionSpec
from suffice.train import distributed, optimiser, sharded
from suffice.train.evaluate import ModelInputs, cross_entropy, flatten_answers
from suffice.train.language.fit import gradient_checkpointing
from suffice.train.language.loss import Batch, summed_loss
from suffice.train.language.settings import LMTraining
from suffice.train.optimiser import OptimiserSettings
from suffice.train.settings import Training

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


# of tokenizers whose size the recipe does not say; characters are those of Tiny Shakespeare
VOCABULARIES = {"gpt2": 50_257, "llama": 32_000, "characters": 65}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The training of one recipe with one mechanism."""

    name: str  # name of the recipe
    title: str  # title in one line
    mechanism: str  # attention mechanism
    specs: tuple[AttentionSpec, ...]  # spec of every attention layer
    build: Callable[[], nn.Module]  # function that makes the model
    # function that returns the loss of the model on a number of rows of zeros
    loss: Callable[[nn.Module, int], Tensor]
    rates: OptimiserSettings  # settings of the optimiser
    clip: float | None  # largest norm of the gradient; None if not clipped
    rows: int  # rows of a step, summed over micro-batches and processes
    tokens: int  # tokens per row
    accumulate: int = 1  # micro-batches of a step, as the recipe says
    dtype: str = "float32"  # dtype of the products
    checkpointing: bool = False  # whether the recipe recomputes blocks in the backward pass
    # whether its training supports accumulation, checkpointing and sharding
    adjustable: bool = False
    autoregressive: bool = False  # whether the model generates, with a KV cache
    steps: int | None = None  # optimiser steps; None if the size of the data decides
    epochs: int | None = None  # over the data, if that decides

    def all_steps(self, examples: int | None) -> int | None:
        """Return the steps of the whole training; None if the size of the data is not known.

        Args:
            examples: rows of the data to learn from.

        Raises:
            ConfigError: if the recipe's steps do not depend on the data, or there is no row.
        """
        if examples is None:
            return self.steps
        if self.epochs is None:
            raise ConfigError(
                f"examples={examples}: {self.name} makes {self.steps:,} steps whatever the data; "
                "leave examples out."
            )
        if examples < 1:
            raise ConfigError(f"examples={examples}; give at least 1.")
        return self.epochs * -(-examples // self.rows)


def workload(
    name: str, *, mechanism: str | None = None, num_heads: int | None = None, scale: str = "paper"
) -> Workload:
    """Return the training of a recipe.

    Args:
        name: name of a recipe, also of a language model's.
        mechanism: attention mechanism; None uses the recipe's, "standard" where it compares
            several.
        num_heads: None uses the recipe's own.
        scale: "paper" or "small"; recipes of language models have one.

    Raises:
        ConfigError: for an unknown name, mechanism or scale, or heads that do not fit.
    """
    if name in LM_RECIPES:
        if scale != "paper":
            raise ConfigError(f"scale={scale!r}: recipe {name} has one scale; leave it out.")
        return _lm_workload(name, mechanism, num_heads)
    check_known("recipe", name, ALL_RECIPES)
    return _task_workload(recipe(name, scale=scale), mechanism or "standard", num_heads)


def _lm_workload(name: str, mechanism: str | None, num_heads: int | None) -> Workload:
    changes = {"mechanism": mechanism, "num_heads": num_heads}
    recipe = lm_recipe(name)
    recipe = recipe.changed({key: value for key, value in changes.items() if value is not None})
    settings = recipe.training
    config, specs = recipe.configured(recipe.vocabulary_size or VOCABULARIES[recipe.tokenizer])
    return Workload(
        name=name,
        title=recipe.title,
        mechanism=recipe.mechanism or CONFIGURATIONS[recipe.configuration].mechanism,
        specs=tuple(specs),
        build=partial(config.build, specs),
        loss=partial(_lm_loss, settings),
        rates=settings,
        clip=settings.clip,
        rows=settings.batch_size,
        tokens=settings.length,
        accumulate=settings.accumulate,
        dtype=settings.dtype,
        checkpointing=settings.checkpointing,
        adjustable=True,
        autoregressive=True,
        steps=settings.steps,
    )


def _lm_loss(settings: LMTraining, model: nn.Module, rows: int) -> Tensor:
    tokens = torch.zeros(rows, settings.length, dtype=torch.int64)
    numbers = torch.zeros_like(tokens) if settings.documents == "separate" else None
    batch = Batch(tokens, torch.zeros_like(tokens), None, numbers)
    return summed_loss(model, batch, dtype=settings.dtype)


def _task_workload(recipe: Recipe, mechanism: str, num_heads: int | None) -> Workload:
    heads = recipe.num_heads if num_heads is None else num_heads
    sizes = recipe.model_of(mechanism)
    return Workload(
        name=recipe.name,
        title=recipe.title,
        mechanism=mechanism,
        specs=tuple(recipe.specs(mechanism, heads)),
        build=partial(recipe.build, mechanism, heads),
        loss=partial(_task_loss, recipe.training, sizes),
        rates=recipe.training,
        clip=recipe.training.clip,
        rows=recipe.training.batch_size,
        tokens=sizes.length,
        autoregressive=isinstance(sizes, LMConfig),
        epochs=recipe.training.epochs,
    )


def _task_loss(settings: Training, sizes: Sizes, model: nn.Module, rows: int) -> Tensor:
    reading, labels = _rows(sizes, rows)
    logits, labels = flatten_answers(reading.logits(model), labels)
    return cross_entropy(logits, labels, reduction="sum", label_smoothing=settings.label_smoothing)


def _rows(sizes: Sizes, rows: int) -> tuple[ModelInputs, Tensor]:
    """Return inputs for a model of these sizes and their labels: zeros, without padding."""
    if isinstance(sizes, ViTConfig):
        side = sizes.image_size
        images = torch.zeros(rows, sizes.channels, side, side)
        return ModelInputs(images), torch.zeros(rows, dtype=torch.int64)
    tokens = torch.zeros(rows, sizes.length, dtype=torch.int64)
    valid = torch.ones(rows, sizes.length, dtype=torch.bool)
    if isinstance(sizes, ClassifierConfig):
        return ModelInputs(tokens, valid), torch.zeros(rows, dtype=torch.int64)
    if isinstance(sizes, LMConfig):
        return ModelInputs(tokens), torch.zeros_like(tokens)
    return ModelInputs(tokens, valid, tokens, valid), torch.zeros_like(tokens)


UNWRITTEN = ("aten::empty", "aten::new_empty")  # memory without content


@dataclass(frozen=True)
class Call:
    """One operation: shapes in place of tensors, dtype of its largest input, bytes moved."""

    packet: Any
    args: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]
    result: Any
    dtype: str
    traffic: int


@dataclass
class Recording:
    """Operations with products and their counts, bytes of each other one, bytes exchanged."""

    calls: Counter[Call] = field(default_factory=Counter)
    traffic: list[int] = field(default_factory=list)
    exchanged: list[tuple[str, int]] = field(default_factory=list)


class Recorder(TorchDispatchMode):
    """Counts live bytes and records operations.

    FSDP frees and fills gathered weights by resizing their storage, which no operation shows, so
    `recording` watches that, too.
    """

    def __init__(self, existing: Iterable[Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._recording = Recording()
        self._sizes: dict[int, int] = {}
        self._formulas = _flop_formulas()
        for tensor in existing:
            self._track(tensor)

    def take(self) -> Recording:
        """Return the operations since the last call."""
        taken, self._recording = self._recording, Recording()
        return taken

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204, D105
        if any(hasattr(kind, "full_tensor") for kind in types):
            return NotImplemented  # a DTensor: its local part arrives here by itself
        options = kwargs or {}
        result = func(*args, **options)
        if func.namespace == "prim":
            return result  # a query, such as of a device
        outputs = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        for tensor in outputs:
            self._track(tensor)
        self._record(func, args, options, result, outputs)
        return result

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record operations and resized storages during the block."""
        resize = torch.UntypedStorage.resize_

        def measured_resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            resized = resize(storage, size)
            self._measure(storage)
            return resized

        torch.UntypedStorage.resize_ = measured_resize  # type: ignore[method-assign]
        try:
            with self:
                yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

    def _track(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._sizes:
            self._sizes[storage._cdata] = 0
            weakref.finalize(storage, self._drop, storage._cdata).atexit = False
        self._measure(storage)

    def _measure(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._sizes:
            self.live += storage.nbytes() - self._sizes[storage._cdata]
            self._sizes[storage._cdata] = storage.nbytes()
            self.peak = max(self.peak, self.live)

    def _drop(self, key: int) -> None:
        self.live -= self._sizes.pop(key)

    def _record(
        self, func: Any, args: tuple[Any, ...], options: dict[str, Any], result: Any, outputs: list
    ) -> None:
        name = func._schema.name
        inputs = [t for t in tree_leaves((args, options)) if isinstance(t, Tensor)]
        if name.startswith("c10d::"):
            size = max((t.nbytes for t in (*inputs, *outputs)), default=0)
            self._recording.exchanged.append((name.removeprefix("c10d::").strip("_"), size))
            return
        if name.startswith(UNWRITTEN) or _is_view(func, inputs, outputs):
            return
        traffic = sum(t.nbytes for t in (*inputs, *outputs))
        if func._overloadpacket not in self._formulas:
            self._recording.traffic.append(traffic)
            return
        shapes = tree_map_only(Tensor, lambda t: t.shape, (args, options, result))
        largest = max(inputs, key=lambda t: t.nbytes)
        self._recording.calls[
            Call(
                packet=func._overloadpacket,
                args=_hashable(shapes[0]),
                options=tuple(sorted(shapes[1].items())),
                result=_hashable(shapes[2]),
                dtype=str(largest.dtype).removeprefix("torch."),
                traffic=traffic,
            )
        ] += 1


def flops_of(call: Call) -> int:
    """Return the FLOPs of one operation; not under a fake mode, since patterns are evaluated."""
    return _flop_formulas()[call.packet](*call.args, **dict(call.options), out_val=call.result)


def _flop_formulas() -> dict[Any, Any]:
    from torch.utils.flop_counter import flop_registry

    from suffice.ops import register_flops

    register_flops()
    return flop_registry


def _is_view(func: Any, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    if func._schema.is_mutable or not outputs:
        return not outputs
    storages = {t.untyped_storage()._cdata for t in inputs}
    return all(t.untyped_storage()._cdata in storages for t in outputs)


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return tuple(map(_hashable, value))
    return value


@contextlib.contextmanager
def fake_process_group(ranks: int) -> Iterator[DeviceMesh]:
    """Yield the mesh of a fake process group of any size, as seen from rank 0.

    Raises StateError if this process is in a group already.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise StateError(
            f"this is one of {dist.get_world_size()} processes; plan from a separate process, "
            "not one that torchrun started."
        )
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        gc.collect()  # parts of models hold the group
        dist.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One step as one rank sees it; bytes."""

    parameter_count: int  # parameters of the whole model
    parameters: int  # this rank's
    gradients: int  # bytes of the gradients, once all exist
    optimiser: int  # its state
    activations: int  # saved for the backward pass of a micro-batch, gathered weights included
    peak: int  # the most at once during the step
    micro: Recording  # operations of every micro-batch but the last
    last: Recording  # operations of the last one, which reduces the gradients
    step: Recording  # operations of the optimiser

    @property
    def state(self) -> int:
        """Bytes that do not depend on the rows: parameters, gradients, optimiser."""
        return self.parameters + self.gradients + self.optimiser


def trace(
    workload: Workload,
    rows: int,
    *,
    checkpointing: bool = False,
    accumulate: int = 1,
    ranks: int = 1,
) -> Trace:
    """Return one step as one rank sees it.

    Args:
        workload: training to run.
        rows: rows of a micro-batch on this rank.
        checkpointing: whether blocks are recomputed in the backward pass.
        accumulate: micro-batches of the step; from the second one on gradients exist before.
        ranks: number of ranks that share the weights (FSDP2); 1 replicates them.

    Raises:
        StateError: if this process is in a group already.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    fake_mode = FakeTensorMode()
    with fake_process_group(ranks) if ranks > 1 else contextlib.nullcontext() as mesh, fake_mode:
        model = workload.build()
        parameter_count = sum(p.numel() for p in model.parameters())
        for module in model.modules():
            if isinstance(module, Attention):
                module.impl = _gpu_op(module)
        if mesh is not None:
            sharded.cut(model, mesh)
        model.train()
        return _traced(workload, model, parameter_count, rows, checkpointing, accumulate)


def _traced(
    workload: Workload,
    model: nn.Module,
    parameter_count: int,
    rows: int,
    checkpointing: bool,
    accumulate: int,
) -> Trace:
    stepping = optimiser.build(model, workload.rates)
    trainable = [p for p in model.parameters() if p.requires_grad]
    for parameter in trainable:
        parameter.grad = torch.zeros_like(parameter)
    stepping.step()  # creates its state
    moments = [t for state in stepping.state.values() for t in state.values()]
    gradients = [p.grad for p in trainable]
    existing = [*model.parameters(), *moments, *gradients, *model.buffers()]
    recorder = Recorder(map(sharded.local, existing))
    sizes = [_bytes(tensors) for tensors in (model.parameters(), gradients, moments)]
    del existing, gradients
    if accumulate == 1:
        stepping.zero_grad(set_to_none=True)
    with recorder.recording(), gradient_checkpointing(model, checkpointing):
        micro = None
        if accumulate > 1 and distributed.is_sharded(model):
            with distributed.no_sync(model):
                _forward_backward(workload, model, rows, recorder)
            micro = recorder.take()
        activations = _forward_backward(workload, model, rows, recorder)
        last = recorder.take()
        if workload.clip is not None:
            nn.utils.clip_grad_norm_(trainable, workload.clip)
        stepping.step()
    return Trace(
        parameter_count=parameter_count,
        parameters=sizes[0],
        gradients=sizes[1],
        optimiser=sizes[2],
        activations=activations,
        peak=recorder.peak,
        micro=last if micro is None else micro,
        last=last,
        step=recorder.take(),
    )


def _forward_backward(workload: Workload, model: nn.Module, rows: int, recorder: Recorder) -> int:
    """Add the gradients of a micro-batch; return the bytes of its activations."""
    with without_values():
        before = recorder.live
        loss = workload.loss(model, rows)
        activations = recorder.live - before
        (loss * 1.0).backward()
    return activations


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Keep our code from reading values, as while compiling: fake tensors have none.

    Sums of features still run as outside a compiler, which takes less memory.
    """
    before = torch.compiler.is_compiling, scan.is_transformed
    torch.compiler.is_compiling, scan.is_transformed = (lambda: True), (lambda: False)
    try:
        yield
    finally:
        torch.compiler.is_compiling, scan.is_transformed = before


def _gpu_op(layer: Attention) -> str:
    spec = layer.spec
    has_dropout = any(isinstance(m, Dropout) and m.p > 0.0 for m in layer.children())
    if type(spec.kernel) is not Softmax or has_dropout:
        return "auto"
    return "fused" if spec.pattern.dense else "blocked"


def _bytes(tensors: Iterable[Any]) -> int:
    return sum(sharded.local(tensor).nbytes for tensor in tensors)
