"""Stock models with softmax attention compute the same by `attend`."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import masking_utils

from suffice.hf import accelerate
from suffice.hf.acceleration.attention import NAME, PatternMask, mask, restriction_of
from suffice.testing import assert_close

from .stock import ATTENDING, gradients, model, tokens

CLOSE = {"n": 100}  # 1e-5 of the largest magnitude


def padded(x, places=13):
    """Return a mask with padding on the left of the first row."""
    valid = torch.ones_like(x)
    valid[0, :places] = 0
    return valid


@pytest.mark.parametrize("name", ATTENDING)
def test_logits_and_gradients_are_those_of_stock(name):
    stock, ours, x = model(name), model(name), tokens()
    accelerate(ours)
    valid = padded(x)
    for m in (stock, ours):
        logits = m(x, attention_mask=valid).logits
        logits.square()[valid.bool()].mean().backward()
    with torch.no_grad():
        assert_close(ours(x).logits, stock(x).logits, **CLOSE)
    got, want = (gradients(m) for m in (ours, stock))
    assert_close(got / want.abs().max(), want / want.abs().max(), **CLOSE)


@pytest.mark.parametrize("places", [0, 13])
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("llama", {"cache_implementation": "static"}),
        ("gemma2", {}),
        ("gemma3", {"cache_implementation": "static"}),
        ("gpt_oss", {"num_beams": 2}),
        ("qwen3_5", {}),
    ],
)
def test_text_and_logits_are_those_of_stock(name, how, places):
    made, x = model(name), tokens(length=20)
    settings = {"attention_mask": padded(x, places), "max_new_tokens": 8, "do_sample": False} | how
    settings |= {"output_logits": True, "return_dict_in_generate": True}
    want = made.generate(x, **settings)
    accelerate(made)
    got = made.generate(x, **settings)
    assert torch.equal(got.sequences, want.sequences)
    for ours, theirs in zip(got.logits, want.logits, strict=True):
        assert_close(ours, theirs, **CLOSE)


def test_a_window_of_one_token_writes_what_it_reads_in_whole_texts():
    made, x = model("mistral", sliding_window=1), tokens(length=9)
    settings = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    with torch.no_grad():
        accelerate(made)
        got = made.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=5, **settings)
        want = model("mistral", sliding_window=1)(got.sequences, use_cache=False).logits[:, 8:-1]
    assert_close(torch.stack(got.logits, dim=1), want, **CLOSE)


@pytest.mark.parametrize("name", ["gemma3", "mistral"])
def test_packed_rows_are_those_of_stock(name):
    made, x = model(name), tokens(rows=1)
    where = {"position_ids": torch.cat([torch.arange(30), torch.arange(40)])[None]}
    with torch.no_grad():
        want = made(x, use_cache=False, **where).logits
        accelerate(made)
        assert_close(made(x, use_cache=False, **where).logits, want, **CLOSE)
        assert_close(made(x[:, 30:]).logits, want[:, 30:], **CLOSE)


def test_encoders_keep_their_windows_and_padding():
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        local_attention=8,
        pad_token_id=0,
    )
    made, x = transformers.ModernBertModel(config).eval(), tokens()
    valid = padded(x)
    with torch.no_grad():
        want = made(x, attention_mask=valid).last_hidden_state
        report = accelerate(made)
        got = made(x, attention_mask=valid).last_hidden_state
    assert sum(piece.function == "attention" for piece in report.replaced) == 3
    assert_close(got[valid.bool()], want[valid.bool()], **CLOSE)


def test_biases_and_dropout_stay_with_transformers():
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(vocab_size=64, decoder_start_token_id=0, **sizes)
    made, x = transformers.T5ForConditionalGeneration(config).eval(), tokens()
    with torch.no_grad():
        want = made(x, attention_mask=padded(x), labels=x).logits
        report = accelerate(made)
        assert not any(piece.function == "attention" for piece in report.replaced)
        assert sum("biases" in piece.reason for piece in report.left) == 6
        assert_close(made(x, attention_mask=padded(x), labels=x).logits, want, **CLOSE)
    dropping = model("llama", attention_dropout=0.5).train()
    torch.manual_seed(0)
    want = dropping(x).logits
    accelerate(dropping)
    torch.manual_seed(0)
    assert_close(dropping(x).logits, want, **CLOSE)


def test_undo_gives_the_implementation_back():
    made = model("gemma2")
    accelerate(made)
    report = accelerate(made)
    assert made.config._attn_implementation == NAME
    report.undo()
    assert made.config._attn_implementation == "eager"


DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])


def _packed(inner):
    """Return the mask function of packed rows as the installed version makes it."""
    if make := getattr(masking_utils, "packed_sequence_compatibility_function", None):
        return make(inner, POSITIONS, DOCUMENTS)
    return masking_utils.and_masks(inner, masking_utils.packed_sequence_mask_function(DOCUMENTS))


KNOWN = {
    "causal": masking_utils.causal_mask_function,
    "bidirectional": masking_utils.bidirectional_mask_function,
    "window": masking_utils.sliding_window_causal_mask_function(3),
    "window around": masking_utils.sliding_window_bidirectional_mask_function(2),
    "packed": _packed(masking_utils.sliding_window_causal_mask_function(3)),
}


class TestMasks:
    """What transformers' functions of positions say; they may change with its version."""

    @pytest.mark.parametrize("name", KNOWN)
    def test_known_functions_become_patterns(self, name):
        restriction = restriction_of(KNOWN[name])
        assert restriction is not None
        allowed = restriction.pattern.mask(8, 8)
        if restriction.documents is not None:
            allowed = allowed & (DOCUMENTS[0, :, None] == DOCUMENTS[0])
        want = masking_utils.sdpa_mask(
            1, 8, 8, mask_function=KNOWN[name], allow_is_causal_skip=False
        )
        assert torch.equal(allowed, want[0, 0])

    def test_other_functions_become_dense_masks(self):
        odd = masking_utils.or_masks(
            masking_utils.causal_mask_function, lambda b, h, q, k: (q + k) % 3 == 0
        )
        assert restriction_of(odd) is None
        got = mask(batch_size=1, q_length=6, kv_length=6, mask_function=odd)
        assert type(got) is torch.Tensor
        assert bool(got[0, 0, 1, 2])

    def test_padding_is_that_of_the_keys_that_a_window_keeps(self):
        real = torch.tensor([[False] * 4 + [True] * 4])
        made = mask(
            batch_size=1,
            q_length=1,
            kv_length=5,
            q_offset=7,
            kv_offset=3,
            mask_function=masking_utils.sliding_window_causal_mask_function(5),
            attention_mask=real,
        )
        assert made.valid.tolist() == real[:, 3:].tolist()
        assert (made[0, 0] | False).tolist() == real[:, 3:].tolist()

    def test_a_pattern_is_dense_for_whoever_reads_it(self):
        valid = torch.tensor([[False, True, True, True, True, True]])
        made = mask(
            batch_size=1,
            q_length=3,
            kv_length=6,
            q_offset=3,
            mask_function=masking_utils.sliding_window_causal_mask_function(4),
            attention_mask=valid,
        )
        assert isinstance(made, PatternMask)
        want = [[0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]]
        assert (made[0, 0] | False).int().tolist() == want
