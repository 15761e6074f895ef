"""Assisted decoding of stock models: drafts of another model and of the prompt itself."""

from __future__ import annotations

import pytest
import torch

from suffice.hf import accelerate

from .stock import RECURRENT, model, tokens

GREEDY = {"max_new_tokens": 16, "do_sample": False}


def drafting(name):
    """Return a model that drafts some of the tokens right and others wrong."""
    made, draws = model(name), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draws), alpha=0.02)
    return made


@pytest.mark.parametrize("how", ["assistant_model", "prompt_lookup_num_tokens"])
@pytest.mark.parametrize("name", ["gemma3", "gemma2"])
def test_windows_are_rolled_back_to_the_text_of_stock(name, how):
    """Rejected drafts are dropped from the caches of windows that they have moved on."""
    x = tokens(rows=1, length=10).repeat(1, 3)
    stock, ours = model(name), model(name)
    want = stock.generate(x, **GREEDY)
    accelerate(ours)
    steps = []
    ours.register_forward_hook(lambda *_: steps.append(1))
    draft = 4
    if how == "assistant_model":
        draft = drafting(name)
        accelerate(draft)
    assert torch.equal(ours.generate(x, **GREEDY, **{how: draft}), want)
    assert 1 < len(steps) < GREEDY["max_new_tokens"]


@pytest.mark.parametrize("name", RECURRENT)
def test_states_that_cannot_go_back_are_refused_as_by_stock(name):
    """transformers drafts for no model with states; a refused call leaves the text as it was."""
    x, made = tokens(rows=1, length=12), model(name)
    want = made.generate(x, **GREEDY)
    sentences = []
    for wanted in (False, True):
        if wanted:
            accelerate(made)
        for draft in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": drafting(name)}):
            with pytest.raises(ValueError, match="stateful") as refusal:
                made.generate(x, **GREEDY, **draft)
            sentences.append(str(refusal.value))
        assert torch.equal(made.generate(x, **GREEDY), want)
    assert len(set(sentences)) == 1
