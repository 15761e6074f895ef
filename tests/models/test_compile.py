"""torch.compile decodes in few graphs, without graph breaks."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounterWithBackend

from suffice.memory import Dynamic, Rolling, Static
from suffice.models import LMConfig
from suffice.presets import schedule, takes_length
from suffice.testing import padded
from tests.acceptance.mechanisms import PRESET_KINDS

V, LENGTH, PROMPT, STEPS = 23, 40, 8, 12
MECHANISMS = sorted({name for name, causal in PRESET_KINDS.values() if causal})
SUMS = {"linear", "performer", "rfa"}
SLOW = pytest.mark.slow
QUICK = ("super_attention", "linear")
"""Tokens that a mixing reads, and sums; a window and shared keys have tests of their own."""

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def build(mechanism, positions="learned", depth=1, length=LENGTH):
    options = {"length": length} if takes_length(mechanism) else {}
    specs = schedule(mechanism, 16, 2, depth=depth, causal=True, **options)
    sizes = {"vocabulary_size": V, "length": length, "d_model": 16, "depth": depth}
    torch.manual_seed(3)
    return LMConfig(**sizes, mlp_width=16, positions=positions).build(specs).eval()


def compiled(lm, backend="eager"):
    counter = CompileCounterWithBackend(backend)
    return torch.compile(lm, backend=counter, fullgraph=True), counter


def ids(batch=1, length=PROMPT + STEPS):
    return torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(4))


def streamed(model, tokens, state, prompt=PROMPT, valid=None):
    outs = [model(tokens[:, :prompt], valid=valid, state=state)]
    outs += [model(token, state=state) for token in tokens[:, prompt:].split(1, dim=1)]
    return torch.cat(outs, dim=1)


def close(got, want):
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


def some(quick, every):
    """Parameters; those that are not in quick are marked slow."""
    return [name if name in quick else pytest.param(name, marks=SLOW) for name in every]


@pytest.mark.parametrize("mechanism", some(QUICK, MECHANISMS))
def test_a_prompt_and_its_tokens_are_two_graphs(mechanism):
    """Three for Infini, which concatenates the keys of an open segment."""
    lm, tokens = build(mechanism), ids()
    fast, counter = compiled(lm)
    memory = Dynamic() if mechanism in SUMS else Static(LENGTH)
    close(streamed(fast, tokens, lm.state(memory)), lm(tokens))
    assert counter.frame_count <= (3 if mechanism == "infini" else 2)


@pytest.mark.parametrize(
    "memory", some({Dynamic()}, [Static(LENGTH), Dynamic(), Rolling(LENGTH)]), ids=repr
)
def test_layers_that_share_are_in_the_same_graphs(memory):
    lm, tokens = build("cla", depth=3), ids()
    fast, counter = compiled(lm)
    close(streamed(fast, tokens, lm.state(memory)), lm(tokens))
    assert counter.frame_count <= 2


@pytest.mark.parametrize(
    "mechanism",
    some({"standard"}, ["standard", "super_attention", "linear", "mistral"]),
)
def test_padded_prompts(mechanism):
    lm, tokens = build(mechanism), ids(3, 14)
    valid = padded(3, PROMPT, "left", seed=2)
    fast, counter = compiled(lm)
    want = streamed(lm, tokens, lm.state(), valid=valid)
    got = streamed(fast, tokens, lm.state(), valid=valid)
    close(got[:, PROMPT - 1 :], want[:, PROMPT - 1 :])
    assert counter.frame_count <= 3


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["standard", "super_attention", "linear"])
@pytest.mark.parametrize("positions", ["none", "learned"])
def test_inductor_gives_the_same(mechanism, positions):
    lm, tokens = build(mechanism, positions, depth=2), ids(length=PROMPT + 8)
    fast, counter = compiled(lm, "inductor")
    memory = Dynamic() if mechanism in SUMS else Static(LENGTH)
    close(streamed(fast, tokens, lm.state(memory)), lm(tokens))
    assert counter.frame_count <= 2
