"""One step of a training on tensors without content: what it keeps, computes and exchanges.

The model, the loss, the optimiser and the sharding are those of the training itself; no number is
computed and no memory taken. Attention runs through torch's fused op, or where a pattern leaves
pairs out through `blocked`, as kernels of a GPU do: neither forms the weights of all pairs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from suffice.layers import Attention, Dropout
from suffice.ops import scan
from suffice.planning.group import imagined
from suffice.planning.recorder import Recorder, Stretch
from suffice.planning.work import Work
from suffice.train import optimiser, sharded
from suffice.train.language.recompute import recomputing


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
    recorder = Recorder(map(sharded.own, [*kept, *model.buffers()]))
    sizes = [_bytes(found) for found in (model.parameters(), kept[-len(learned) :], moments)]
    del kept
    if accumulate == 1:
        adamw.zero_grad(set_to_none=True)
    with recorder.watching(), recomputing(model, checkpointing):
        micro = None
        if accumulate > 1 and sharded.is_sharded(model):
            with sharded.apart(model):
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
    was = torch.compiler.is_compiling, scan.looked_into
    torch.compiler.is_compiling, scan.looked_into = (lambda: True), (lambda *_: False)
    try:
        yield
    finally:
        torch.compiler.is_compiling, scan.looked_into = was


def _op(layer: Attention) -> str:
    """Name the op whose memory and products are those of a GPU's kernels."""
    spec = layer.spec
    drops = any(isinstance(m, Dropout) and m.p > 0.0 for m in layer.children())
    if not spec.kernel.weighs_pairs or drops:
        return "auto"
    return "fused" if spec.pattern.dense else "blocked"


def _bytes(tensors: Iterable[Any]) -> int:
    return sum(_size(sharded.own(tensor)) for tensor in tensors)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
