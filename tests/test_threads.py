"""One number of threads for torch and the kernels."""

from __future__ import annotations

import pytest
import torch

import suffice
from suffice.errors import ConfigError
from suffice.ops.native import matrix as multiplied
from suffice.ops.native.matrix import structure_of


@pytest.fixture(autouse=True)
def restored():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_number_is_told_and_set():
    assert suffice.threads() == torch.get_num_threads()
    assert suffice.threads(3) == 3 == torch.get_num_threads()
    assert suffice.threads() == 3
    torch.set_num_threads(2)
    assert suffice.threads() == 2


def test_the_kernels_use_it(monkeypatch):
    told = []

    class Library:
        def suffice_multiply(self, *given):
            told.append(given[-1])

    monkeypatch.setattr(multiplied, "library", Library)
    for n in (1, 2, 7):
        suffice.threads(n)
        multiplied.multiply(structure_of(torch.zeros(2, 3), None), torch.zeros(1, 3))
    assert told == [1, 2, 7]


@pytest.mark.parametrize("wrong", [0, -2, 1.5, True, "2"])
def test_what_is_no_number_of_threads_is_refused(wrong):
    before = torch.get_num_threads()
    with pytest.raises(ConfigError, match="give a number of at least 1, or nothing to ask"):
        suffice.threads(wrong)
    assert torch.get_num_threads() == before
