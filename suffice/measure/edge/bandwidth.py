"""How fast this machine reads memory."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from suffice.native import library, matrix

LEAST = 1 << 20  # bytes; below, starting threads takes longer than reading
COLUMNS = 1024


class Reading:
    """A buffer that is read again and again.

    It is summed by torch and multiplied by the native kernels where there are any; the faster one
    counts, as a bound must be one for both.

    Args:
        nbytes: of the buffer: as many as what is held against it reads, for caches serve both.
    """

    def __init__(self, nbytes: int) -> None:
        rows = max(nbytes, LEAST) // (4 * COLUMNS)
        self.buffer = torch.ones(rows, COLUMNS)
        self.ways: list[Callable[[], object]] = [self.buffer.sum]
        if library.available():
            self.x, self.y = torch.ones(COLUMNS), torch.empty(rows)
            self.matrix = matrix.structure_of(self.buffer, None)
            self.ways.append(self._multiply)
        self.fastest: Callable[[], object] | None = None

    def _multiply(self) -> None:
        x, y = self.x.data_ptr(), self.y.data_ptr()
        library.library().suffice_multiply(self.matrix, x, 1, y, torch.get_num_threads())

    def speed(self, passes: int = 5) -> float:
        """Return bytes a second, of the fastest pass of these."""
        if self.fastest is None:
            self.fastest = min(self.ways, key=lambda way: self._seconds(way, passes))
        return self.buffer.nbytes / self._seconds(self.fastest, passes)

    @staticmethod
    def _seconds(way: Callable[[], object], passes: int) -> float:
        taken = []
        for _ in range(passes + 1):  # the first one wakes threads
            start = perf_counter()
            way()
            taken.append(perf_counter() - start)
        return min(taken[1:])
