"""What the maps of a model read, gathered in one pass over calibration text.

Letters: B rows, T tokens, K inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from suffice.models import LM

TOGETHER = 16  # rows computed at once


class Moments:
    """The sum of x x^T over the inputs x of each map, [K, K] in float64.

    Maps that read the same tensor share one sum.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.owners: dict[str, str] = {}  # of each map, the first one that read its inputs
        self.last: tuple[Tensor, str] | None = None

    def __getitem__(self, name: str) -> Tensor | None:
        """Return the sum of a map, None of one that read nothing."""
        return self.sums.get(self.owners.get(name, name))

    def add(self, name: str, x: Tensor) -> None:
        """Take what a map reads now."""
        if name not in self.owners:
            same = self.last is not None and self.last[0] is x
            self.owners[name] = self.last[1] if same else name
        if self.owners[name] == name:
            rows = x.detach().flatten(0, -2).double()
            self.sums[name] = self.sums.get(name, 0.0) + rows.t() @ rows
            self.last = x, name


@torch.no_grad()
def gather(
    lm: LM, names: Iterable[str], tokens: Tensor, step: Callable[[int, int], None]
) -> Moments:
    """Return the moments of the named maps over some text.

    Args:
        lm: in evaluation.
        names: of linear maps; "embedding.tokens" stands for the head where they are one.
        tokens: int [B, T].
        step: told how many rows of how many are done.
    """
    found, hooks = Moments(), []

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _module, given: found.add(name, given[0])

    head = "embedding.tokens" if lm.head is None else "head"
    names = list(names)
    try:
        for name in names:
            if name not in ("head", "embedding.tokens"):
                hooks.append(lm.get_submodule(name).register_forward_pre_hook(hook(name)))
        for done, rows in enumerate(tokens.split(TOGETHER)):
            features = lm.features(rows.to(lm.device))
            if head in names:
                found.add(head, features)
            step(min((done + 1) * TOGETHER, len(tokens)), len(tokens))
    finally:
        for one in hooks:
            one.remove()
    found.last = None
    return found
