"""The mean over the targets of the whole batch, however it is cut."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suffice.data.dataset import IGNORE_INDEX
from suffice.text import TokenFile
from suffice.train.distributed import Processes
from suffice.train.language import Batch, Windows, fit_lm, micro_batch_shares

from .texts import LETTERS, files, settings, tiny


class Rows:
    """The same rows at every step, with different numbers of targets."""

    facts: dict[str, object] = {"name": "rows"}

    def __init__(self, counts, vocabulary, *, seed=0, length=None):
        generator = torch.Generator().manual_seed(seed)
        length = length or max(counts)
        self.counts = torch.tensor(counts)
        self.tokens = torch.randint(vocabulary, (len(counts), length), generator=generator)
        real = torch.arange(length) < self.counts[:, None]
        follow = torch.randint(vocabulary, (len(counts), length), generator=generator)
        self.targets = follow.masked_fill(~real, IGNORE_INDEX)
        self.real = real

    def rows(self, step, start, stop):
        part = slice(start, stop)
        return Batch(self.tokens[part], self.targets[part], self.real[part])


class Head(nn.Module):
    """A linear map of given features."""

    def __init__(self, features, tokens):
        super().__init__()
        self.features, self.tokens = features, tokens
        self.head = nn.Linear(features.shape[-1], 8)

    def forward(self, tokens, valid=None):
        if tokens.shape[1] != self.tokens.shape[1]:  # of the validation text
            return self.head(self.features.new_zeros(*tokens.shape, self.features.shape[-1]))
        same = (self.tokens[:, None] == tokens[None]).all(dim=-1)
        return self.head(self.features[same.long().argmax(dim=0)])


def test_two_micro_batches_of_2_and_30_tokens_are_one_of_32(tmp_path):
    rows = Rows([2, 30], 7)
    features = torch.randn(2, 30, 5, dtype=torch.float64)
    model = Head(features, rows.tokens).double()
    losses = F.cross_entropy(
        model.head(features).flatten(0, 1), rows.targets.flatten(), reduction="none"
    ).view(2, 30)
    (expected,) = torch.autograd.grad(losses.sum() / 32, model.head.weight, retain_graph=True)
    (row_means,) = torch.autograd.grad(
        losses[0].sum() / 4 + losses[1].mean() / 2, model.head.weight
    )
    training = settings(
        steps=1, warmup=0, batch_size=2, length=30, accumulate=2, clip=None, documents="joined"
    )
    run = fit_lm(model, rows, files(tmp_path)[1], training, seed=0)
    gradient = model.head.weight.grad
    assert run.best.tokens == 32
    assert run.best.train_loss == pytest.approx(losses.sum().item() / 32)
    assert (gradient - expected).norm() < 1e-6 * expected.norm()
    assert (gradient - row_means).norm() > 0.1 * gradient.norm(), "not a mean of means"


def trained(rows, tmp_path, **changes):
    model = tiny(dtype=torch.float64)
    training = settings(steps=20, batch_size=8, evaluate_every=10, documents="joined", **changes)
    run = fit_lm(model, rows, files(tmp_path)[1], training, seed=3)
    return model, run


@pytest.mark.parametrize("micro_batches", [2, 3, 8])
def test_any_cut_of_the_batch_trains_alike(tmp_path, micro_batches):
    rows = Rows([12, 1, 7, 3, 12, 5, 2, 9], 8)
    single, run = trained(rows, tmp_path)
    cut, other = trained(rows, tmp_path, accumulate=micro_batches)
    for name, tensor in single.state_dict().items():
        torch.testing.assert_close(cut.state_dict()[name], tensor, rtol=1e-5, atol=1e-8)
    losses = [[(m.train_loss, m.validation_loss) for m in r.measured] for r in (run, other)]
    for left, second in zip(*losses, strict=True):
        assert second == pytest.approx(left, rel=1e-6)


def test_a_batch_without_a_target_changes_nothing(tmp_path):
    rows = Rows([0, 0, 0, 0, 0, 0, 0, 0], 8, length=12)
    before = tiny(dtype=torch.float64).state_dict()
    model, run = trained(rows, tmp_path)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert [left.train_loss for left in run.measured] == [0.0, 0.0]
    assert run.measured[-1].tokens == 0


def test_a_micro_batch_without_a_target_changes_no_other(tmp_path):
    rows = Rows([0, 0, 0, 0, 5, 5, 5, 5], 8, length=12)
    single, _ = trained(rows, tmp_path)
    cut, _ = trained(rows, tmp_path, accumulate=2)
    for name, tensor in single.state_dict().items():
        assert torch.isfinite(tensor).all()
        torch.testing.assert_close(cut.state_dict()[name], tensor, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("size", "cut", "world"), [(8, 1, 1), (12, 5, 2), (7, 2, 3), (9, 3, 2)])
def test_every_row_is_in_one_share(size, cut, world):
    result = [micro_batch_shares(size, cut, Processes(rank, world)) for rank in range(world)]
    rows = [row for micro in range(cut) for shares in result for row in range(*shares[micro][:2])]
    assert rows == list(range(size))
    for shares in result:
        for start, stop, first, total in shares:
            assert 0 <= first < first + stop - start <= total


def test_separate_documents_do_not_see_or_predict_each_other(tmp_path):
    file = TokenFile.write(tmp_path / "t.bin", ["abc", "de", "fgh"], LETTERS)
    joined = Windows(file, 1, 7, 0).rows(0, 0, 1)
    apart = Windows(file, 1, 7, 0, separate=True).rows(0, 0, 1)
    assert joined.segments is None
    assert joined.targets.tolist() == [[1, 2, 3, 4, 5, 6, 7]]
    assert apart.targets.tolist() == [[1, 2, IGNORE_INDEX, 4, IGNORE_INDEX, 6, 7]]
    assert apart.segments.tolist() == [[0, 0, 0, 1, 1, 2, 2]]
    assert (joined.num_targets, apart.num_targets) == (7, 5)
