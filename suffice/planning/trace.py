"""One step of a training on tensors without content: what it keeps, computes and exchanges.

The model, the loss, the optimiser and the sharding are those of the training itself; no number is
computed and no memory taken. Attention runs through torch's fused op, or where a pattern leaves
pairs out through `blocked`, as kernels of a GPU do: neither forms the weights of all pairs.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from suffice.errors import StateError
from suffice.layers import Attention, Dropout
from suffice.ops import scan
from suffice.planning.request import Work
from suffice.train import optimiser, sharded
from suffice.train.language.fit import gradient_checkpointing

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


MAKES_NOTHING = ("aten::empty", "aten::new_empty")  # memory whose content nobody writes yet


@dataclass(frozen=True)
class Call:
    """One operation, with shapes in the place of tensors.

    Args:
        packet: the operator.
        args: its arguments.
        options: its keyword arguments.
        result: its result.
        dtype: of its largest input.
        traffic: bytes read and written.
    """

    packet: Any
    args: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]
    result: Any
    dtype: str
    traffic: int


@dataclass
class Stretch:
    """What was done between two moments.

    Args:
        calls: operations with products, and how often.
        traffic: bytes of all other operations, one number for each.
        exchanged: bytes of each collective, by kind, of the whole tensor.
    """

    calls: Counter[Call] = field(default_factory=Counter)
    traffic: list[int] = field(default_factory=list)
    exchanged: list[tuple[str, int]] = field(default_factory=list)


class Recorder(TorchDispatchMode):
    """Counts the bytes that are alive and notes what is computed.

    FSDP frees and fills gathered weights by changing the size of their storage, which no operation
    shows: that is watched, too.

    Args:
        there: tensors that exist already.
    """

    def __init__(self, there: Iterable[Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.stretch = Stretch()
        self._sizes: dict[int, int] = {}
        self._formulas = _formulas()
        for tensor in there:
            self._hold(tensor)

    def take(self) -> Stretch:
        """Return what was done since the last time."""
        taken, self.stretch = self.stretch, Stretch()
        return taken

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204, D105
        if any(hasattr(kind, "full_tensor") for kind in types):
            return NotImplemented  # a tensor cut between processes: its part comes here by itself
        options = kwargs or {}
        result = func(*args, **options)
        if func.namespace == "prim":
            return result  # a question about a tensor
        made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        for tensor in made:
            self._hold(tensor)
        self._note(func, args, options, result, made)
        return result

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Notice storages that change their size, for the time of the block, and record."""
        resize = torch.UntypedStorage.resize_

        def noticed(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            given = resize(storage, size)
            self._measure(storage)
            return given

        torch.UntypedStorage.resize_ = noticed  # type: ignore[method-assign]
        try:
            with self:
                yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

    def _hold(self, tensor: Tensor) -> None:
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

    def _note(
        self, func: Any, args: tuple[Any, ...], options: dict[str, Any], result: Any, made: list
    ) -> None:
        name = func._schema.name
        read = [t for t in tree_leaves((args, options)) if isinstance(t, Tensor)]
        if name.startswith("c10d::"):
            whole = max((t.nbytes for t in (*read, *made)), default=0)
            self.stretch.exchanged.append((name.removeprefix("c10d::").strip("_"), whole))
            return
        if name.startswith(MAKES_NOTHING) or _is_view(func, read, made):
            return
        traffic = sum(t.nbytes for t in (*read, *made))
        if func._overloadpacket not in self._formulas:
            self.stretch.traffic.append(traffic)
            return
        shaped = tree_map_only(Tensor, lambda t: t.shape, (args, options, result))
        largest = max(read, key=lambda t: t.nbytes)
        self.stretch.calls[
            Call(
                packet=func._overloadpacket,
                args=_fixed(shaped[0]),
                options=tuple(sorted(shaped[1].items())),
                result=_fixed(shaped[2]),
                dtype=str(largest.dtype).removeprefix("torch."),
                traffic=traffic,
            )
        ] += 1


def flops_of(call: Call) -> int:
    """Return the FLOPs of one operation; not in the block of a fake mode, as patterns are cut."""
    return _formulas()[call.packet](*call.args, **dict(call.options), out_val=call.result)


def _formulas() -> dict[Any, Any]:
    from torch.utils.flop_counter import flop_registry

    from suffice.ops import register_flops

    register_flops()
    return flop_registry


def _is_view(func: Any, read: list[Tensor], made: list[Tensor]) -> bool:
    """Return whether an operation only looks at its arguments in another way."""
    if func._schema.is_mutable or not made:
        return not made
    there = {t.untyped_storage()._cdata for t in read}
    return all(t.untyped_storage()._cdata in there for t in made)


def _fixed(value: Any) -> Any:
    """Return lists as tuples, so that equal calls are one."""
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return tuple(map(_fixed, value))
    return value


@contextlib.contextmanager
def imagined(ranks: int) -> Iterator[DeviceMesh]:
    """Give a mesh of processes whose messages go nowhere, for the time of the block.

    Args:
        ranks: how many.

    Raises:
        StateError: if this process has real ones already.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise StateError(
            f"this is one of {dist.get_world_size()} processes; plan from a process of its own, "
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
    """One step as one rank sees it; bytes.

    Args:
        numbers: parameters of the whole model.
        parameters: this rank's.
        gradients: of them, once all are there.
        optimiser: its state.
        activations: what a micro-batch keeps for its backward pass, gathered weights included.
        peak: the fullest moment of the step.
        micro: what every micro-batch but the last does.
        last: what the last one does, after which gradients meet.
        step: what the optimiser does.
    """

    numbers: int
    parameters: int
    gradients: int
    optimiser: int
    activations: int
    peak: int
    micro: Stretch
    last: Stretch
    step: Stretch

    @property
    def state(self) -> int:
        """Bytes that are there whatever the rows: parameters, gradients, optimiser."""
        return self.parameters + self.gradients + self.optimiser


def trace(
    work: Work,
    rows: int,
    *,
    checkpointing: bool = False,
    accumulate: int = 1,
    ranks: int = 1,
) -> Trace:
    """Return what a step does on one rank.

    Args:
        work: of a recipe.
        rows: of a micro-batch on this rank.
        checkpointing: whether blocks are computed anew in the backward pass.
        accumulate: micro-batches of the step; from the second on gradients exist beforehand.
        ranks: that share the weights (FSDP2); 1 = this rank holds all of them.

    Raises:
        StateError: if real processes are joined already.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    numberless = FakeTensorMode()
    with imagined(ranks) if ranks > 1 else contextlib.nullcontext() as mesh, numberless:
        model = work.build()
        numbers = sum(p.numel() for p in model.parameters())
        for module in model.modules():
            if isinstance(module, Attention):
                module.impl = _op(module)
        if mesh is not None:
            sharded.cut(model, mesh)
        model.train()
        return _traced(work, model, numbers, rows, checkpointing, accumulate)


def _traced(
    work: Work, model: nn.Module, numbers: int, rows: int, checkpointing: bool, accumulate: int
) -> Trace:
    adamw = optimiser.build(model, work.rates)
    learned = [p for p in model.parameters() if p.requires_grad]
    for parameter in learned:
        parameter.grad = torch.zeros_like(parameter)
    adamw.step()  # so that its state is there
    moments = [t for state in adamw.state.values() for t in state.values()]
    kept = [*model.parameters(), *moments, *(p.grad for p in learned)]
    recorder = Recorder(map(sharded.local, [*kept, *model.buffers()]))
    sizes = [_bytes(found) for found in (model.parameters(), kept[-len(learned) :], moments)]
    del kept
    if accumulate == 1:
        adamw.zero_grad(set_to_none=True)
    with recorder.watching(), gradient_checkpointing(model, checkpointing):
        micro = None
        if accumulate > 1 and sharded.is_sharded(model):
            with sharded.no_sync(model):
                _learn(work, model, rows, recorder)
            micro = recorder.take()
        activations = _learn(work, model, rows, recorder)
        last = recorder.take()
        if work.clip is not None:
            nn.utils.clip_grad_norm_(learned, work.clip)
        adamw.step()
    return Trace(
        numbers=numbers,
        parameters=sizes[0],
        gradients=sizes[1],
        optimiser=sizes[2],
        activations=activations,
        peak=recorder.peak,
        micro=last if micro is None else micro,
        last=last,
        step=recorder.take(),
    )


def _learn(work: Work, model: nn.Module, rows: int, recorder: Recorder) -> int:
    """Add the gradients of a micro-batch; return the bytes that were kept for them."""
    with unseen():
        before = recorder.live
        loss = work.loss(model, rows)
        kept = recorder.live - before
        (loss * 1.0).backward()
    return kept


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Keep our code from looking at numbers, as while compiling: there are none.

    But sums of features go the way that they go outside a compiler, which keeps less.
    """
    was = torch.compiler.is_compiling, scan.is_transformed
    torch.compiler.is_compiling, scan.is_transformed = (lambda: True), (lambda: False)
    try:
        yield
    finally:
        torch.compiler.is_compiling, scan.is_transformed = was


def _op(layer: Attention) -> str:
    """Name the op whose memory and products are those of a GPU's kernels."""
    spec = layer.spec
    drops = any(isinstance(m, Dropout) and m.p > 0.0 for m in layer.children())
    if not spec.kernel.weighs_pairs or drops:
        return "auto"
    return "fused" if spec.pattern.dense else "blocked"


def _bytes(tensors: Iterable[Any]) -> int:
    return sum(_size(sharded.local(tensor)) for tensor in tensors)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
