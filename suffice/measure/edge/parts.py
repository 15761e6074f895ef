"""Where the time of a token goes: each part of the native step, measured.

The products of a part are done alone, in the order of the layers, so that the matrices come from
where they lie during a step; what a call takes that multiplies next to nothing is taken off.
Attention is what a step behind a text takes more than a step behind one token. What then is left of
a step, and of a token of `generate`, has rows of its own; where both are near 0 they may be below.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from suffice.measure.edge.shapes import read_bytes, seen
from suffice.memory import Memory
from suffice.models import LM
from suffice.models.fused import Fused
from suffice.native import structures as of
from suffice.native.matrix import structure_of

MAPS = {
    "queries, keys, values": ("q", "k", "v"),
    "output map": ("o",),
    "MLP": ("gate", "up", "down"),
}
ROUNDS = 15
LEAST = 16  # rows and columns of a product that takes next to nothing
NUMBERS = {of.F32: 32, of.F16: 16, of.BF16: 16, of.INT8: 8, of.INT4: 4}


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a token.

    Args:
        name: of it.
        nbytes: that it reads.
        flops: that it computes.
        seconds: median.
    """

    name: str
    nbytes: int
    flops: int
    seconds: float


def parts(lm: LM, memory: Memory, prompt: Tensor, token_seconds: float) -> list[Part]:
    """Measure the parts of the token behind a prompt.

    Args:
        lm: the model, which native code can step through.
        memory: what is kept of the text.
        prompt: ids [T].
        token_seconds: of one token of `generate`.
    """
    far, near = (_Behind(lm, memory, ids) for ids in (prompt, prompt[:1]))
    alone = _Products(far.fused)
    for _ in range(ROUNDS):
        far.step()
        near.step()
        alone.multiply()
    products = alone.parts()
    step = far.median()
    attention = step - near.median()
    length = len(prompt)
    flops = sum(4 * s.num_heads * s.head_width * seen(s, memory, length) for s in lm.specs)
    nbytes = read_bytes(lm, memory, length)[1]
    products.insert(1, Part(name="attention", nbytes=nbytes, flops=flops, seconds=attention))
    rest = step - sum(part.seconds for part in products)
    around = token_seconds - step
    return [
        *products,
        Part(name="embedding, norms, turns", nbytes=0, flops=0, seconds=rest),
        Part(name="around the step", nbytes=0, flops=0, seconds=around),
    ]


class _Behind:
    """Steps behind a text, each taken back."""

    def __init__(self, lm: LM, memory: Memory, ids: Tensor) -> None:
        self.fused, self.state = Fused(lm, memory), lm.state(memory)
        with torch.inference_mode():
            lm.features(ids[None], state=self.state)
        self.token, self.seconds = torch.zeros(1, dtype=torch.int64), []
        self.step()  # makes room
        self.seconds.clear()

    def step(self) -> None:
        start = perf_counter()
        with torch.inference_mode():
            self.fused.step(self.token, self.state)
        self.seconds.append(perf_counter() - start)
        if self.state.can_drop(1):
            self.state.drop_last(1)

    def median(self) -> float:
        return statistics.median(self.seconds)


class _Products:
    """The products of a step, one after another."""

    def __init__(self, fused: Fused) -> None:
        self.call, self.threads = fused.library.suffice_multiply, torch.get_num_threads()
        self.matrices = list(_matrices(fused))
        widest = max(max(matrix.rows, matrix.columns) for _, matrix in self.matrices)
        self.x, self.y = torch.randn(widest), torch.empty(widest)
        self.seconds: dict[str, list[float]] = {name: [] for name, _ in self.matrices}
        self.least = torch.zeros(LEAST, LEAST)
        self.empty: list[float] = []

    def multiply(self) -> None:
        empty = structure_of(self.least, None)
        self._time(empty)  # wakes the threads
        for seconds in self.seconds.values():
            seconds.append(0.0)
        for name, matrix in self.matrices:
            self.empty.append(self._time(empty))
            self.seconds[name][-1] += self._time(matrix)

    def _time(self, matrix: of.Matrix) -> float:
        start = perf_counter()
        self.call(matrix, self.x.data_ptr(), 1, self.y.data_ptr(), self.threads)
        return perf_counter() - start

    def parts(self) -> list[Part]:
        empty, found = statistics.median(self.empty), []
        for name, seconds in self.seconds.items():
            own = [matrix for part, matrix in self.matrices if part == name]
            found.append(
                Part(
                    name=name,
                    nbytes=sum(map(_bytes, own)),
                    flops=sum(2 * matrix.rows * matrix.columns for matrix in own),
                    seconds=statistics.median(seconds) - len(own) * empty,
                )
            )
        return found


def _matrices(fused: Fused) -> Iterator[tuple[str, of.Matrix]]:
    """Give every matrix of a step in its order, with the part it belongs to."""
    for layer in fused.layers:
        for part, names in MAPS.items():
            found = [getattr(layer, name) for name in names]
            yield from ((part, matrix) for matrix in found if matrix.kind != of.ABSENT)
    yield "head", fused.model.head


def _bytes(matrix: of.Matrix) -> int:
    numbers = matrix.rows * matrix.columns
    scales = 2 * numbers // matrix.group if matrix.group else 0
    return numbers * NUMBERS[matrix.kind] // 8 + scales
