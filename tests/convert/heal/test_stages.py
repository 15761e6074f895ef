"""What the stages lower, from their formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from suffice.convert.heal.stages import Control, Distillation, Regression
from suffice.data.dataset import IGNORE_INDEX
from suffice.train.language import Batch, CrossEntropy

from .small import student, teacher

TOKENS = torch.randint(9, (3, 9), generator=torch.Generator().manual_seed(0))
TARGETS = TOKENS[:, 1:].masked_fill(torch.arange(8) % 3 == 1, IGNORE_INDEX)
BATCH = Batch(TOKENS[:, :-1], TARGETS)


def test_distillation_is_the_sum_over_targets_of_both_losses():
    model = student("mqa", naive=True)
    asked = TARGETS != IGNORE_INDEX
    own = model(BATCH.tokens)[asked].log_softmax(dim=-1)
    theirs = teacher()(BATCH.tokens)[asked].log_softmax(dim=-1)
    divergence = (theirs.exp() * (theirs - own)).sum()
    entropy = F.nll_loss(own, TARGETS[asked], reduction="sum")
    for kl in (0.0, 0.3, 1.0):
        found = Distillation(teacher(), kl).summed_loss(model, BATCH, dtype="float32")
        assert found.item() == pytest.approx((kl * divergence + (1 - kl) * entropy).item())
    for plain in (Control(), CrossEntropy()):
        found = plain.summed_loss(model, BATCH, dtype="float32")
        assert found.item() == pytest.approx(entropy.item())


def test_a_student_that_answers_as_the_teacher_has_no_divergence():
    objective = Distillation(teacher(), 1.0)
    assert objective.summed_loss(teacher(), BATCH, dtype="float32").item() == pytest.approx(
        0, abs=1e-4
    )


@pytest.mark.parametrize("padded", [False, True])
def test_regression_is_the_share_of_the_teachers_output_that_is_missed(padded):
    model, names = student("mqa", naive=True), ("blocks.0.attention", "blocks.1.attention")
    valid = torch.ones(3, 8, dtype=torch.bool)
    if padded:
        valid[0, 5:] = False
    batch = BATCH._replace(valid=valid) if padded else BATCH
    inputs, outputs = {}, {}
    for name in names:
        layer = teacher().get_submodule(name)
        hook = layer.register_forward_hook(
            lambda _m, given, y, name=name: (
                inputs.update({name: given[0]}),
                outputs.update({name: y}),
                None,
            )[2]
        )
        teacher()(batch.tokens, valid=valid if padded else None)
        hook.remove()
    shares = []
    for name in names:
        found = model.get_submodule(name)(inputs[name], valid=valid if padded else None)
        wrong = (found - outputs[name])[valid].square().sum()
        shares.append(wrong / outputs[name][valid].square().sum())
    model.requires_grad_(True)
    loss = Regression(teacher(), names).summed_loss(model, batch, dtype="float32")
    assert loss.item() == pytest.approx((sum(shares) / 2 * batch.num_targets).item(), rel=1e-4)
    loss.backward()
    assert model.blocks[0].attention.k_proj.weight.grad.abs().max() > 0
    assert model.blocks[0].mlp.up.weight.grad is None
    assert all(p.grad is None for p in teacher().parameters())
    model.zero_grad(set_to_none=True)


def test_objectives_have_different_facts():
    facts = {"start": "1"}
    told = [
        Regression(teacher(), ("a",), facts).facts,
        Distillation(teacher(), 0.5, facts).facts,
        Distillation(teacher(), 0.4, facts).facts,
        Control(facts).facts,
    ]
    assert all(one["start"] == "1" for one in told)
    assert len({str(one) for one in told}) == 4
