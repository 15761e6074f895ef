from __future__ import annotations

import torch

from suffice.train.settings import derive, generator


def test_streams_differ_in_purpose_seed_and_epoch_and_never_by_chance():
    keys = [(p, s, e) for p in ("order", "augment") for s in range(40) for e in range(40)]
    assert len({derive(*key) for key in keys}) == len(keys)
    assert derive("order", 0, 2**32) != derive("order", 0, 0)
    assert all(0 <= derive(*key) < 2**32 for key in keys)


def test_a_generator_is_a_pure_function_and_leaves_the_global_state_alone():
    before = torch.get_rng_state()
    first = torch.rand(3, generator=generator("order", 1, 2))
    assert torch.equal(first, torch.rand(3, generator=generator("order", 1, 2)))
    assert not torch.equal(first, torch.rand(3, generator=generator("order", 1, 3)))
    assert torch.equal(before, torch.get_rng_state())
