"""Room for one position that the caller writes."""

from __future__ import annotations

import pytest
import torch

from suffice.errors import ConfigError
from suffice.memory import Dynamic, Rolling, Store
from suffice.ops.native import library as of
from suffice.ops.native.cache import Holding


def test_a_claimed_position_is_the_callers_to_write():
    store = Dynamic().build()
    store.append(torch.zeros(1, 2, 3, 4))
    near = store.claim().near
    near.parts[0][:, :, near.end - 1] = 7.0
    assert store.length == 4
    assert store.latest(1)[0].eq(7.0).all()


def test_a_store_without_room_of_its_own_says_so():
    with pytest.raises(ConfigError, match="Dynamic gives out no room; append positions"):
        Store.claim(Dynamic())


def test_sizes_come_from_what_was_appended():
    with pytest.raises(ConfigError, match="nothing was appended yet, so the sizes"):
        Dynamic().build().claim()


def test_sinks_are_appended_first():
    store = Rolling(4, sinks=3).build()
    store.append(torch.zeros(1, 2, 1, 4))
    with pytest.raises(ConfigError, match="1 positions of 3 sinks are there; append the others"):
        store.claim()


def test_positions_that_do_not_follow_each_other_are_refused():
    store = Dynamic().build()
    store.append(torch.zeros(1, 2, 3, 4))
    claim = store.claim()
    apart = claim.near._replace(parts=tuple(part[..., ::2] for part in claim.near.parts))
    with pytest.raises(ConfigError, match="the kernels read those of the CPU that follow"):
        Holding(of.Held(), Dynamic(), None, 2).take(claim._replace(near=apart))
