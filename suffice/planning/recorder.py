"""What an execution on tensors without content allocates, computes and exchanges."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

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
