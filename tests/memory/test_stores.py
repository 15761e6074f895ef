"""What a store gives back is what was appended, in its order, whatever the pieces."""

from __future__ import annotations

import json
import math

import pytest
import torch

from suffice.errors import ConfigError
from suffice.memory import Dynamic, Memory, Quantised, Rolling, Static, Store
from suffice.memory.dynamic import GrowingStore
from suffice.memory.quantised import QuantisedStore
from suffice.memory.rolling import RollingStore
from suffice.ops.native import library as native
from suffice.ops.native.cache import CacheDescriptor
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
    Quantised(value_bits=4, block=4, recent=2, group=3),
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
def test_appended_positions_come_back(memory, pieces):
    store, whole = memory.build(), tensors()
    for a, b in spans(pieces):
        held = store.append(*(x[:, :, a:b] for x in whole))
        for got, x in zip(held.tensors, whole, strict=True):
            assert_close(got, x[:, :, expected(held, b)], "exact")
        needed = 0 if memory.window is None else max(0, a - memory.window + 1)
        assert held.first <= needed
        assert held.sinks == (min(memory.sinks, held.first) if memory.sinks else 0)
    assert store.length == LENGTH


@pytest.mark.parametrize("pieces", PIECES, ids=str)
@pytest.mark.parametrize("memory", CODED, ids=repr)
def test_quantised_numbers_come_back_within_half_a_step(memory, pieces):
    store, whole = memory.build(), tensors()
    for a, b in spans(pieces):
        held = store.append(*(x[:, :, a:b] for x in whole))
        at = expected(held, b)
        for i, (got, x) in enumerate(zip(held.tensors, whole, strict=True)):
            span = x.max() - x.min()
            assert (got - x[:, :, at]).abs().max() <= 0.51 * span / (2 ** memory.bits_of(i) - 1)
            assert_close(got[:, :, got.shape[2] - (b - a) :], x[:, :, a:b], "exact")
        needed = 0 if memory.window is None else max(0, a - memory.window + 1)
        assert held.first <= needed


@pytest.mark.parametrize("bits", [(4, None), (8, 4), (4, 8)], ids=str)
def test_codes_are_rounded_steps_above_the_minimum(bits):
    """q = round((x - low) / step), x' = low + q step; keys by channel, values by position."""
    memory = Quantised(bits=bits[0], value_bits=bits[1], block=4, recent=0, group=5)
    store, (k, v) = memory.build(), (x.float() for x in tensors(4))
    store.append(k, v)
    got = store.append(k[:, :, :0], v[:, :, :0]).tensors
    for x, decoded, axis, of in ((k, got[0], 2, bits[0]), (v, got[1], 3, bits[1] or bits[0])):
        low, high = x.amin(dim=axis, keepdim=True), x.amax(dim=axis, keepdim=True)
        step = (high - low) / (2**of - 1)
        assert_close(decoded, low + ((x - low) / step).round() * step)


def test_groups_of_channels_have_ranges_of_their_own():
    memory = Quantised(block=2, recent=0, group=2)
    store = memory.build()
    v = torch.tensor([[0.0, 1.0, 1000.0, 1001.0, 5.0]]).expand(1, 1, 2, 5)
    store.append(v, v)
    assert_close(store.append(v[:, :, :0], v[:, :, :0]).tensors[1], v)


def test_bytes_are_those_of_codes():
    k = torch.zeros(1, 1, 1024, 64)
    memories = Quantised(recent=0), Quantised(bits=4, recent=0), Quantised(value_bits=4, recent=0)
    for memory, bits in zip(memories, (8, 4, 6), strict=True):  # 6: of keys and values on average
        store = memory.build()
        store.append(k, k)
        room = 1.25 + 1 / 16  # blocks grow by a quarter, and one
        codes = 2 * 1024 * 64 * bits / 8
        ranges = 1024 / 64 * 64 * 8 + 1024 * 8
        tail = 2 * 64 * 64 * 4  # room for the block that comes next
        assert memory.nbytes_of([(1, 64)] * 2, 1024, 4) == codes + ranges
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
    shared = min(x.tensors[0].shape[2] for x in (got, want))
    for i, (a, b) in enumerate(zip(got.tensors, want.tensors, strict=True)):
        a, b = a[:, :, -shared:], b[:, :, -shared:]
        steps = 2 ** memory.bits_of(i) - 1 if memory.lossy else math.inf
        if not memory.sinks:
            assert (a - b).abs().max() <= 7.0 / steps


def test_a_spare_can_be_dropped():
    store = Rolling(4, spare=3).build()
    k = normal(1, 1, 300, 2, seed=1)
    for a in range(0, 290, 5):
        store.append(k[:, :, a : a + 5])
        assert store.can_drop(3)
    assert not Rolling(4).build().can_drop(1)


@pytest.mark.parametrize(("window", "sinks", "spare"), [(4, 0, 3), (600, 5, 0), (600, 0, 40)])
def test_only_the_spare_can_be_dropped_after_one_long_append(window, sinks, spare):
    k = normal(1, 1, 2000, 2, seed=1)
    store = Rolling(window, sinks=sinks, spare=spare).build()
    store.append(k)
    assert [n for n in range(window + spare + 2) if store.can_drop(n)] == [*range(spare + 1)]
    assert not store.can_drop(-1)


@pytest.mark.parametrize("sinks", [0, 3])
def test_a_window_is_whole_after_every_drop_that_is_allowed(sinks):
    k = normal(1, 1, 400, 2, seed=1)
    memory = Rolling(20, sinks=sinks, spare=4)
    for length in (1, 19, 24, 25, 103, 104, 150):
        for dropped in range(30):
            store = memory.build()
            for a in range(length):
                store.append(k[:, :, a : a + 1])
            if not store.can_drop(dropped):
                assert dropped > min(length, memory.spare)
                continue
            store.drop_last(dropped)
            end = length - dropped
            cached = store.append(k[:, :, end : end + 1])
            assert cached.first <= max(0, end - 19)
            assert_close(cached.tensors[0], k[:, :, expected(cached, end + 1)], "exact")


@pytest.mark.parametrize("pieces", [[1500], [700, 800], [1] * 40 + [600, 1, 859]], ids=len)
def test_a_window_longer_than_any_buffer_piece(pieces):
    k = normal(1, 1, 1500, 2, seed=1)
    store = Rolling(520, sinks=7, spare=2).build()
    for a, b in spans(pieces):
        cached = store.append(k[:, :, a:b])
        assert_close(cached.tensors[0], k[:, :, expected(cached, b)], "exact")
        assert cached.first <= max(0, a - 519)


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
    for a, b in zip(held.tensors, want.tensors, strict=True):
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
    assert_close(held.tensors[0], k[:1, :, :7], "exact")


def test_too_much_is_refused_before_anything_changes():
    k, v = tensors()
    for memory in (Static(10), Quantised(Static(10), block=2)):
        store = memory.build()
        store.append(k[:, :, :8], v[:, :, :8])
        with pytest.raises(ConfigError, match="3 more.*8 in"):
            store.append(k[:, :, :3], v[:, :, :3])
        assert store.append(k[:, :, 8:10], v[:, :, 8:10]).tensors[0].shape[2] == 10


@pytest.mark.parametrize("memory", [Static(5), Quantised(Static(5), block=2, recent=1)], ids=repr)
def test_exactly_what_fits_can_be_reserved(memory):
    k, v = tensors(5)
    store = memory.build()
    store.append(k[:, :, :3], v[:, :, :3])
    for at in (3, 4):
        recent = store.reserve().recent
        recent.tensors[0][:, :, recent.end - 1] = k[:, :, at]
        recent.tensors[1][:, :, recent.end - 1] = v[:, :, at]
    with pytest.raises(ConfigError, match="1 more.*5"):
        store.reserve()
    store.check_room(0)
    assert (store.latest(5)[0] - k).abs().max() <= (k.max() - k.min()) / 255


@pytest.mark.parametrize("memory", [*KEPT, *CODED], ids=repr)
def test_reset_is_new_for_another_dtype(memory):
    k, v = tensors()
    store = memory.build()
    store.append(k, v)
    store.reset()
    held = store.append(k[:, :, :7].half(), v[:, :, :7].half())
    assert_close(held.tensors[1], v[:, :, :7].half(), "exact")


@pytest.mark.parametrize("bits", [4, 8])
def test_equal_numbers_are_kept_exactly(bits):
    store = Quantised(bits=bits, block=2, recent=0).build()
    for number in (0.0, -3.5):
        store.append(*(torch.full((1, 1, 2, 4), number),) * 2)
    for got in store.latest(4):
        assert_close(got[0, 0, :, 0], torch.tensor([0.0, 0.0, -3.5, -3.5]), "exact")


@pytest.mark.parametrize("recent", [0, 3])
def test_positions_are_quantised_once_a_block_is_old_enough(recent):
    """With blocks of 4 and 3 recent ones, 6 positions are exact and the 7th makes a block."""
    store, reserved = (Quantised(block=4, recent=recent).build() for _ in range(2))
    k = normal(1, 1, 20, 4, seed=1)
    reserved.append(k[:, :, :1], k[:, :, :1])
    store.append(k[:, :, :1], k[:, :, :1])
    for length in range(2, 21):
        store.append(k[:, :, length - 1 : length], k[:, :, length - 1 : length])
        room = reserved.reserve().recent  # as native steps do
        room.tensors[0][:, :, room.end - 1] = room.tensors[1][:, :, room.end - 1] = k[
            :, :, length - 1
        ]
        exact = recent + (length - recent) % 4 if length >= recent else length
        assert store.tail.length == exact
        assert store.can_drop(exact)
        assert not store.can_drop(exact + 1)
    for got, kept in zip(reserved.append(k, k).tensors, store.append(k, k).tensors, strict=True):
        assert_close(got, kept, "exact")


def test_gradients_pass_through_a_growing_memory():
    k = normal(1, 1, 6, 2, seed=1).requires_grad_()
    store = Dynamic().build()
    store.append(k[:, :, :4])
    store.append(k[:, :, 4:5])
    store.drop_last(2)
    (kept,) = store.append(k[:, :, 5:]).tensors
    (gradient,) = torch.autograd.grad(kept.sum(), k)
    assert gradient[0, 0, :, 0].tolist() == [1, 1, 1, 0, 0, 1]
    with torch.no_grad():
        store.append(k[:, :, :2])
    assert store.length == 6


def test_gradients_do_not_pass_through_a_rolling_one():
    k = normal(1, 1, 6, 2, seed=1).requires_grad_()
    with pytest.raises(ConfigError, match="written in place, which gradients cannot pass"):
        Rolling(3).build().append(k)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Static(0), "holds nothing"),
        (lambda: Rolling(0), "give a window of at least 1"),
        (lambda: Rolling(3, spare=-1), "no negative numbers"),
        (lambda: Quantised(bits=3), "give 8 or 4"),
        (lambda: Quantised(block=3), "give an even block"),
        (lambda: Quantised(Quantised()), "keeps numbers as they are"),
    ],
)
def test_illegal_settings(make, named):
    with pytest.raises(ConfigError, match=named):
        make()


@pytest.mark.parametrize("memory", [*KEPT, *CODED], ids=repr)
def test_settings_survive_json(memory):
    assert Memory.from_json(json.loads(json.dumps(memory.to_json()))) == memory


def test_a_reserved_position_is_the_callers_to_write():
    store = Dynamic().build()
    store.append(torch.zeros(1, 2, 3, 4))
    recent = store.reserve().recent
    recent.tensors[0][:, :, recent.end - 1] = 7.0
    assert store.length == 4
    assert store.latest(1)[0].eq(7.0).all()


def test_reserved_positions_of_a_rolling_memory_are_those_of_append():
    k = normal(1, 2, 400, 4, seed=1)
    appended, reserved = (Rolling(20, sinks=3).build() for _ in range(2))
    appended.append(k[:, :, :5])
    reserved.append(k[:, :, :5])
    for at in range(5, 400):
        cached = appended.append(k[:, :, at : at + 1])
        recent = reserved.reserve().recent
        recent.tensors[0][:, :, recent.end - 1] = k[:, :, at]
        assert_close(recent.sinks[0], k[:, :, :3], "exact")
        window = recent.tensors[0][:, :, recent.start : recent.end]
        assert_close(window, cached.tensors[0][:, :, cached.sinks :], "exact")
        assert recent.first == cached.first


def test_a_store_without_in_place_writes_refuses_to_reserve():
    with pytest.raises(ConfigError, match="Dynamic"):
        Store.reserve(Dynamic())


def test_positions_are_reserved_once_their_sizes_are_known():
    with pytest.raises(ConfigError, match="nothing was appended yet"):
        Dynamic().build().reserve()


def test_sinks_are_appended_before_positions_are_reserved():
    store = Rolling(4, sinks=3).build()
    store.append(torch.zeros(1, 2, 1, 4))
    with pytest.raises(ConfigError, match="1 positions of 3 sinks"):
        store.reserve()


def test_native_kernels_refuse_strided_positions():
    store = Dynamic().build()
    store.append(torch.zeros(1, 2, 3, 4))
    slot = store.reserve()
    strided = slot.recent._replace(tensors=tuple(x[..., ::2] for x in slot.recent.tensors))
    with pytest.raises(ConfigError, match="strides"):
        CacheDescriptor(native.KVCache(), Dynamic(), None, 2).update(slot._replace(recent=strided))


WIDTHS = ((3, 8), (2, 5))
COUNTED = (
    Dynamic(),
    Static(400),
    Rolling(1),
    Rolling(20, sinks=3, spare=2),
    Rolling(90, sinks=70),
    Quantised(block=4, recent=2, group=3),
    Quantised(bits=4, block=16, recent=0, group=64),
    Quantised(Rolling(40, sinks=5, spare=3), bits=4, block=8, recent=7, group=2),
    Quantised(Static(400), block=64, recent=64),
)


def held_bytes(store):
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
@pytest.mark.parametrize("memory", COUNTED, ids=repr)
def test_a_store_holds_so_many_bytes(memory, dtype):
    store = memory.build()
    assert memory.nbytes_of(WIDTHS, 0, dtype.itemsize) == 0
    for tokens in range(1, 301):
        store.append(*(torch.ones(1, heads, 1, width, dtype=dtype) for heads, width in WIDTHS))
        assert memory.nbytes_of(WIDTHS, tokens, dtype.itemsize) == held_bytes(store)
        assert held_bytes(store) <= store.nbytes
