"""The backend changes the speed, not the text."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from suffice import AttentionSpec
from suffice.errors import ConfigError
from suffice.generate import Greedy, Sample, generate
from suffice.generate.decoding import choose_backend
from suffice.kernels import Elu
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.models.native_decoder import NativeDecoder
from suffice.ops.native import library
from suffice.patterns import Causal, Window
from tests.generate.models import PROMPTS, SPEC, model
from tests.ops.native.codings import needs_kernels

WINDOW = AttentionSpec(d_model=16, num_heads=4, pattern=Window(4) & Causal())
EFFICIENT = replace(SPEC, num_kv_heads=None)


def single(spec=SPEC, **options):
    """Return a model in float32, which the kernels read."""
    return model(spec, **options).float()


@pytest.fixture(scope="module")
def lm():
    return single()


@needs_kernels
@pytest.mark.parametrize(
    ("spec", "memory"),
    [
        (SPEC, Dynamic()),
        (SPEC, Static(40)),
        (SPEC, Rolling(6)),
        (SPEC, Quantised(block=4, recent=4)),
        (SPEC, Quantised(Rolling(8), bits=4, block=2, recent=2)),
        (EFFICIENT, Dynamic()),
        (WINDOW, Dynamic()),
        (WINDOW, Rolling(4)),
    ],
    ids=str,
)
def test_every_impl_writes_the_same(spec, memory):
    lm = single(spec)
    for sampling in (Greedy(), Sample(temperature=0.7, seed=2)):
        options = {"max_new_tokens": 25, "memory": memory, "sampling": sampling, "stop": (16,)}
        want = generate(lm, PROMPTS, **options, impl="torch")
        assert want.steps == "torch (asked for)"
        for impl in ("auto", "native"):
            got = generate(lm, PROMPTS, **options, impl=impl)
            assert got.steps == f"native ({library.instructions()})"
            assert torch.equal(got.tokens, want.tokens)
            assert got.lengths == want.lengths


@needs_kernels
def test_beams_step_natively(lm):
    options = {"max_new_tokens": 12, "beams": 3, "stop": (16,), "length_penalty": 0.6}
    want = generate(lm, PROMPTS, **options, impl="torch")
    got = generate(lm, PROMPTS, **options, impl="native")
    assert torch.equal(got.tokens, want.tokens)
    assert (got.scores - want.scores).abs().max() < 1e-4
    assert got.steps.startswith("native")


@needs_kernels
@pytest.mark.parametrize("memory", [Dynamic(), Static(40), Rolling(30)], ids=repr)
def test_drafts_are_proposed_natively(lm, memory):
    draft = single(depth=1, seed=3)
    options = {"max_new_tokens": 20, "draft": draft, "memory": memory}
    want = generate(lm, PROMPTS, **options, impl="torch")
    got = generate(lm, PROMPTS, **options, impl="native")
    assert torch.equal(got.tokens, want.tokens)
    assert got.steps.startswith("native")


@needs_kernels
def test_the_state_of_a_result_goes_on_with_gradients(lm):
    want = generate(lm, PROMPTS, max_new_tokens=6, impl="torch").new
    got = generate(lm, PROMPTS, max_new_tokens=5, keep_state=True, impl="native")
    assert got.state.length == 9 + 4
    logits = lm(got.tokens[:, -1:], state=got.state)[:, -1]
    assert logits.argmax(dim=1).tolist() == want[:, -1].tolist()
    assert logits.requires_grad


@needs_kernels
def test_dropout_is_off_while_native_code_steps():
    lm = single(dropout=0.5)
    want = generate(lm, PROMPTS, max_new_tokens=6, impl="native")
    lm.train()
    got = generate(lm, PROMPTS, max_new_tokens=6, impl="native")
    assert torch.equal(got.tokens, want.tokens)
    assert lm.training


@needs_kernels
def test_a_native_decoder_in_place_of_a_model(lm):
    decoder = NativeDecoder(lm, Dynamic())
    assert choose_backend(decoder, Dynamic(), "auto") == (
        decoder,
        f"native ({library.instructions()})",
    )
    assert choose_backend(decoder, Dynamic(), "torch") == (lm, "torch (asked for)")
    got = generate(decoder, PROMPTS, max_new_tokens=6)
    assert torch.equal(got.tokens, generate(lm, PROMPTS, max_new_tokens=6, impl="torch").tokens)


@needs_kernels
def test_several_threads_of_python_write_at_once(lm):
    want = [generate(lm, [p], max_new_tokens=30, impl="torch").tokens for p in PROMPTS * 3]
    got = [None] * len(want)

    def write(number):
        got[number] = generate(lm, [(PROMPTS * 3)[number]], max_new_tokens=30, impl="native").tokens

    threads = [threading.Thread(target=write, args=(n,)) for n in range(len(want))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


SUMS = AttentionSpec(d_model=16, num_heads=4, pattern=Causal(), kernel=Elu())


@needs_kernels
@pytest.mark.parametrize(
    ("lm", "reason"),
    [
        (single(SUMS), "layer 0: Elu keeps sums of features"),
        (model(), "embedding.tokens is torch.float64; kernels read float32, float16 and bfloat16"),
    ],
    ids=["sums", "float64"],
)
def test_what_native_code_cannot_serve_goes_through_torch_and_says_why(lm, reason):
    got = generate(lm, PROMPTS, max_new_tokens=4)
    assert got.steps == f"torch ({reason})"
    with pytest.raises(ConfigError, match=f"impl='native' is not possible: {reason}; give 'auto'"):
        generate(lm, PROMPTS, max_new_tokens=4, impl="native")


def test_unknown_impls_are_refused(lm):
    with pytest.raises(ConfigError, match="unknown impl 'fast'"):
        generate(lm, PROMPTS, max_new_tokens=4, impl="fast")


def test_without_kernels_everything_runs_through_torch(lm, no_kernels):
    draft = single(depth=1, seed=3)
    for options in ({}, {"beams": 2}, {"draft": draft}, {"memory": Quantised()}):
        if options.get("draft"):
            options = {**options, "memory": Dynamic()}
        got = generate(lm, PROMPTS, max_new_tokens=6, **options)
        want = generate(lm, PROMPTS, max_new_tokens=6, impl="torch", **options)
        assert got.steps == "torch (they were not built)"
        assert torch.equal(got.tokens, want.tokens)
    with pytest.raises(ConfigError, match="impl='native'"):
        generate(lm, PROMPTS, max_new_tokens=6, impl="native")
    with pytest.raises(ConfigError, match="no native kernels here: they were not built"):
        library.library()
