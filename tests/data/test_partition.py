from __future__ import annotations

import torch

from suffice.data.dataset import held_out, permutation, stratified


def test_permutation_is_the_one_of_every_other_machine():
    assert permutation(10).tolist() == [2, 8, 4, 9, 1, 6, 7, 3, 0, 5]


def test_permutation_ignores_training_seeds():
    torch.manual_seed(1)
    first = permutation(100)
    torch.manual_seed(2)
    assert torch.equal(first, permutation(100))
    assert sorted(first.tolist()) == list(range(100))


def test_held_out_rows_are_the_last_of_the_permutation():
    kept, out = held_out(10, 0.3)
    assert kept.tolist() == [2, 8, 4, 9, 1, 6, 7]
    assert out.tolist() == [3, 0, 5]


def test_stratified_cuts_every_class_in_proportion():
    labels = torch.tensor([0] * 20 + [1] * 10).roll(7)
    parts = stratified(labels, 0.6, 0.1)
    assert [labels[part].bincount().tolist() for part in parts] == [[12, 6], [2, 1], [6, 3]]
    assert parts[1].tolist() == [6, 18, 19]
    assert sorted(torch.cat(parts).tolist()) == list(range(30))
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)
