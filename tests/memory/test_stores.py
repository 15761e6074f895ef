"""What a store gives back is what was appended, in its order, whatever the pieces."""

from __future__ import annotations

import json

import pytest
import torch

from suffice.errors import ConfigError
from suffice.memory import Dynamic, Memory, Quantised, Rolling, Static
from suffice.testing import assert_close, normal

LENGTH = 48
PIECES = ([48], [1] * 48, [7, 13, 1, 1, 26], [3, 1, 20, 24], [47, 1])
KEPT = (
    Dynamic(),
    Static(48),
    Rolling(1),
    Rolling(4),
    Rolling(4, sinks=2, spare=3),
    Rolling(9, sinks=5),
)
CODED = (
    Quantised(block=4, recent=2, group=3),
    Quantised(Rolling(6, sinks=3), block=4, recent=1),
    Quantised(Static(48), block=2, recent=0),
)


def tensors(length=LENGTH):
    return normal(2, 3, length, 8, seed=1), normal(2, 3, length, 5, seed=2)


def spans(pieces):
    at = 0
    for piece in pieces:
        yield at, at + piece
        at += piece


def expected(held, end):
    return [*range(held.sinks), *range(held.first, end)]


@pytest.mark.parametrize("pieces", PIECES, ids=str)
@pytest.mark.parametrize("memory", KEPT, ids=repr)
def test_what_comes_back(memory, pieces):
    store, whole = memory.build(), tensors()
    for a, b in spans(pieces):
        held = store.append(*(x[:, :, a:b] for x in whole))
        at = expected(held, b)
        for got, x in zip(held.parts, whole, strict=True):
            assert_close(got, x[:, :, at], "exact")
        needed = 0 if memory.window is None else max(0, a - memory.window + 1)
        assert held.first <= needed
        assert held.sinks == (min(memory.sinks, held.first) if memory.sinks else 0)
    assert store.length == LENGTH


@pytest.mark.parametrize("pieces", PIECES, ids=str)
@pytest.mark.parametrize("memory", CODED, ids=repr)
def test_what_comes_back_coded(memory, pieces):
    """Within half a step of the range of a block (keys) or of a group (values)."""
    store, whole = memory.build(), tensors()
    for a, b in spans(pieces):
        held = store.append(*(x[:, :, a:b] for x in whole))
        at = expected(held, b)
        for got, x in zip(held.parts, whole, strict=True):
            span = x.max() - x.min()
            assert (got - x[:, :, at]).abs().max() <= 0.51 * span / 255
            assert_close(got[:, :, got.shape[2] - (b - a) :], x[:, :, a:b], "exact")
        needed = 0 if memory.window is None else max(0, a - memory.window + 1)
        assert held.first <= needed


def test_codes_follow_the_definition():
    """q = round((x - low) / step), x' = low + q step; keys by channel, values by position."""
    memory = Quantised(bits=4, block=4, recent=0, group=5)
    store, (k, v) = memory.build(), (x.float() for x in tensors(4))
    store.append(k, v)
    got = store.append(k[:, :, :0], v[:, :, :0]).parts
    for x, found, axis in ((k, got[0], 2), (v, got[1], 3)):
        low, high = x.amin(dim=axis, keepdim=True), x.amax(dim=axis, keepdim=True)
        step = (high - low) / 15
        assert_close(found, low + ((x - low) / step).round() * step)


def test_groups_of_channels_have_ranges_of_their_own():
    memory = Quantised(block=2, recent=0, group=2)
    store = memory.build()
    v = torch.tensor([[0.0, 1.0, 1000.0, 1001.0, 5.0]]).expand(1, 1, 2, 5)
    store.append(v, v)
    assert_close(store.append(v[:, :, :0], v[:, :, :0]).parts[1], v)


def test_bytes_are_those_of_codes():
    k = torch.zeros(1, 1, 1024, 64)
    sizes = {bits: Quantised(bits=bits, block=64, recent=0).build() for bits in (8, 4)}
    for bits, store in sizes.items():
        store.append(k, k)
        room = 1.25 + 1 / 16  # blocks grow by a quarter, and one
        codes = 2 * 1024 * 64 * bits / 8
        ranges = 1024 / 64 * 64 * 8 + 1024 * 8
        tail = 2 * 64 * 64 * 4  # room for the block that comes next
        assert codes + ranges <= store.nbytes <= room * (codes + ranges) + tail


def test_rolling_never_grows():
    store = Rolling(16, sinks=2).build()
    k = normal(1, 1, 5, 4, seed=1)
    store.append(k, k)
    size = store.nbytes
    for _ in range(200):
        store.append(k, k)
    assert store.nbytes == size
    assert store.length == 1005


@pytest.mark.parametrize("memory", [*KEPT, *CODED], ids=repr)
@pytest.mark.parametrize("back", [1, 3])
def test_drop_last_is_as_if_they_had_never_come(memory, back):
    """Or it raises, and nothing has changed."""
    k, v = tensors()
    store, other = memory.build(), memory.build()
    for a, b in ((0, 20), (20, 24)):
        store.append(k[:, :, a:b], v[:, :, a:b])
    kept = 24 - back
    if not store.can_drop(back):
        with pytest.raises(ConfigError, match=rf"drop_last\({back}\) of a memory that holds 24"):
            store.drop_last(back)
        kept = 24
    else:
        store.drop_last(back)
    for a, b in ((0, 20), (20, kept)):
        other.append(k[:, :, a:b], v[:, :, a:b])
    assert store.length == other.length == kept
    got = store.append(k[:, :, kept : kept + 5], v[:, :, kept : kept + 5])
    want = other.append(k[:, :, kept : kept + 5], v[:, :, kept : kept + 5])
    shared = min(x.parts[0].shape[2] for x in (got, want))
    for a, b in zip(got.parts, want.parts, strict=True):
        a, b = a[:, :, -shared:], b[:, :, -shared:]
        if not memory.sinks:
            assert (a - b).abs().max() <= (0.03 if memory.rounds else 0.0)


def test_a_spare_can_be_dropped():
    store = Rolling(4, spare=3).build()
    k = normal(1, 1, 300, 2, seed=1)
    for a in range(0, 290, 5):
        store.append(k[:, :, a : a + 5])
        assert store.can_drop(3)
    assert not Rolling(4).build().can_drop(1)


@pytest.mark.parametrize("memory", [*KEPT, *CODED], ids=repr)
def test_rows_are_selected(memory):
    k, v = tensors()
    rows = torch.tensor([1, 1, 0])
    store = memory.build()
    store.append(k[:, :, :30], v[:, :, :30])
    store.select(rows)
    held = store.append(k[rows, :, 30:], v[rows, :, 30:])
    other = memory.build()
    other.append(k[:, :, :30], v[:, :, :30])
    want = other.append(k[:, :, 30:], v[:, :, 30:])
    for a, b in zip(held.parts, want.parts, strict=True):
        assert_close(a, b[rows], "exact")


@pytest.mark.parametrize("memory", [*KEPT, *CODED], ids=repr)
def test_reset_is_new(memory):
    """For another number of rows, too, and for nothing at all."""
    k, v = tensors()
    store = memory.build()
    store.append(k[:, :, :0], v[:, :, :0])
    store.append(k, v)
    store.reset()
    assert store.length == 0
    held = store.append(k[:1, :, :7], v[:1, :, :7])
    assert_close(held.parts[0], k[:1, :, :7], "exact")


def test_too_much_is_refused_before_anything_changes():
    k, v = tensors()
    for memory in (Static(10), Quantised(Static(10), block=2)):
        store = memory.build()
        store.append(k[:, :, :8], v[:, :, :8])
        with pytest.raises(ConfigError, match=r"3 more positions do not fit beside 8 in Static"):
            store.append(k[:, :, :3], v[:, :, :3])
        assert store.append(k[:, :, 8:10], v[:, :, 8:10]).parts[0].shape[2] == 10


def test_gradients_pass_through_a_growing_memory():
    k = normal(1, 1, 6, 2, seed=1).requires_grad_()
    store = Dynamic().build()
    store.append(k[:, :, :4])
    store.append(k[:, :, 4:5])
    store.drop_last(2)
    (found,) = store.append(k[:, :, 5:]).parts
    (slope,) = torch.autograd.grad(found.sum(), k)
    assert slope[0, 0, :, 0].tolist() == [1, 1, 1, 0, 0, 1]
    with torch.no_grad():
        store.append(k[:, :, :2])
    assert store.length == 6


def test_gradients_do_not_pass_through_a_rolling_one():
    k = normal(1, 1, 6, 2, seed=1).requires_grad_()
    with pytest.raises(ConfigError, match="written in place, which gradients cannot pass"):
        Rolling(3).build().append(k)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Static(0), "holds nothing"),
        (lambda: Rolling(0), "give a window of at least 1"),
        (lambda: Rolling(3, spare=-1), "no negative numbers"),
        (lambda: Quantised(bits=3), "give 8 or 4"),
        (lambda: Quantised(block=3), "give an even block"),
        (lambda: Quantised(Quantised()), "keeps numbers as they are"),
    ],
)
def test_what_is_not_legal(make, told):
    with pytest.raises(ConfigError, match=told):
        make()


@pytest.mark.parametrize("memory", [*KEPT, *CODED], ids=repr)
def test_stored_as_plain_data(memory):
    assert Memory.from_json(json.loads(json.dumps(memory.to_json()))) == memory
