"""`nbytes_of` counts what a real store holds, its spare room left out."""

from __future__ import annotations

import pytest
import torch

from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.memory.dynamic import GrowingStore
from suffice.memory.quantised import QuantisedStore
from suffice.memory.rolling import RollingStore

WIDTHS = ((3, 8), (2, 5))
MEMORIES = (
    Dynamic(),
    Static(400),
    Rolling(1),
    Rolling(20),
    Rolling(20, sinks=3, spare=2),
    Rolling(90, sinks=70),
    Quantised(block=4, recent=2, group=3),
    Quantised(bits=4, block=16, recent=0, group=64),
    Quantised(Rolling(40, sinks=5, spare=3), bits=4, block=8, recent=7, group=2),
    Quantised(Static(400), block=64, recent=64),
)


def held_bytes(store):
    """The bytes of a store's tensors, without the positions that are not written yet."""
    if isinstance(store, QuantisedStore):
        return held_bytes(store.blocks) + held_bytes(store.tail)
    sinks = 0
    if isinstance(store, RollingStore):
        sinks = sum(x.numel() * x.element_size() for x in store.sinks)
        held = min(store.length, store.window + store.spare)
    else:
        assert isinstance(store, GrowingStore)
        held = store.length
    return sinks + sum(x[:, :, :held].numel() * x.element_size() for x in store.buffers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
def test_a_store_holds_so_many_bytes(memory, dtype):
    store = memory.build()
    for tokens in range(1, 301):
        store.append(*(torch.ones(1, heads, 1, width, dtype=dtype) for heads, width in WIDTHS))
        assert memory.nbytes_of(WIDTHS, tokens, dtype.itemsize) == held_bytes(store)
        assert held_bytes(store) <= store.nbytes


def test_nothing_is_held_before_the_first_token():
    assert all(memory.nbytes_of(WIDTHS, 0, 4) == 0 for memory in MEMORIES)
