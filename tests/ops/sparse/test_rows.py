"""Documents of padded and packed rows, each in a row of its own."""

from __future__ import annotations

import torch

from suffice.ops.sparse.blocked import DocumentRows
from suffice.testing import assert_close, normal

NUMBERS = torch.tensor([[0, 0, -1, 0, 1], [-1, 5, 5, 5, -1], [-1, -1, -1, -1, -1]])


def test_tokens_of_a_document_stand_from_the_left():
    documents = DocumentRows.of(NUMBERS)
    assert documents.valid.tolist() == [
        [True, True, True],
        [True, False, False],
        [True, True, True],
    ]
    x = normal(3, 2, 5, 4, seed=1)
    rows = documents.take(x)
    assert rows.shape == (3, 2, 3, 4)
    assert_close(rows[0], x[0][:, [0, 1, 3]], "exact")
    assert_close(rows[1][:, :1], x[0][:, 4:], "exact")
    assert (rows[1][:, 1:] == 0).all()
    assert_close(rows[2], x[1][:, 1:4], "exact")


def test_taken_and_put_back():
    documents = DocumentRows.of(NUMBERS)
    x = normal(3, 2, 5, 4, seed=1)
    real = (NUMBERS >= 0)[:, None, :, None]
    assert_close(documents.put(documents.take(x), 3, 5), x * real, "exact")
    flat = x[..., 0]
    assert_close(documents.put(documents.take(flat), 3, 5), flat * real[..., 0], "exact")


def test_equal_numbers_of_two_rows_are_two_documents():
    documents = DocumentRows.of(torch.zeros(2, 3, dtype=torch.long))
    assert documents.valid.shape == (2, 3)


def test_nothing_real():
    documents = DocumentRows.of(torch.full((2, 3), -1))
    x = normal(2, 1, 3, 4, seed=1)
    assert documents.take(x).shape == (0, 1, 0, 4)
    assert_close(documents.put(documents.take(x), 2, 3), torch.zeros_like(x), "exact")
