"""Patterns as attention of stock models."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

from suffice.errors import ConfigError
from suffice.hf import register_pattern
from suffice.ops import reference  # noqa: F401 - the package's ops are registered
from suffice.patterns import Causal, Global, PerHead, Strided, Window
from suffice.testing import assert_close

PATTERNS = {
    "suffice_window_5": Window(5) & Causal(),
    "suffice_strided_3": Strided(3) & Causal(),
    "suffice_global_2": (Window(3) | Global(2)) & Causal(),
    "suffice_two_sided": Window(4),
    "suffice_heads": PerHead((Window(2), Window(6), Causal(), Window(3))) & Causal(),
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    for name, pattern in PATTERNS.items():
        register_pattern(name, pattern)


def stock(name, seed=0):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=40, **sizes, **heads, initializer_range=0.2, eos_token_id=None)
    config._attn_implementation = name
    return LlamaForCausalLM(config).eval()


def by_mask(name, ids):
    """Return logits of transformers' own attention under the mask that the pattern spells."""
    made = stock("eager")
    length = ids.shape[1]
    allowed = PATTERNS[name].mask(length, length) & Causal().mask(length, length)
    allowed = allowed.expand(len(ids), 4, length, length)
    return made(ids, attention_mask=torch.where(allowed, 0.0, -torch.inf)).logits


@pytest.mark.parametrize("name", PATTERNS)
def test_it_is_the_pattern(name):
    ids = torch.randint(40, (2, 14))
    assert_close(stock(name)(ids).logits, by_mask(name, ids))
    assert (stock(name)(ids).logits - stock("eager")(ids).logits).abs().max() > 1e-2


@pytest.mark.parametrize("name", PATTERNS)
def test_generating_with_and_without_a_cache(name):
    made, ids = stock(name), torch.randint(40, (2, 11))
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    want = made.generate(ids, attention_mask=mask, use_cache=False, **options)
    assert torch.equal(made.generate(ids, attention_mask=mask, **options), want)
    alone = made.generate(ids[1:, 6:], **options)
    assert torch.equal(want[1:, 6:], alone)
    whole = torch.ones_like(ids)
    cached = made.generate(ids, attention_mask=whole, **options)
    assert torch.equal(cached, made.generate(ids, attention_mask=whole, use_cache=False, **options))


def test_room_made_in_advance():
    made, ids = stock("suffice_window_5"), torch.randint(40, (2, 9))
    cache = StaticCache(config=made.config, max_cache_len=16)
    got = made(ids, past_key_values=cache).logits
    assert_close(got, made(ids, use_cache=False).logits)


def test_it_trains():
    made, ids = stock("suffice_window_5").train(), torch.randint(40, (2, 9))
    made(ids, labels=ids).loss.backward()
    assert made.model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


def test_the_implementation_can_be_changed():
    made, ids = stock("eager"), torch.randint(40, (2, 14))
    made.set_attn_implementation("suffice_window_5")
    assert_close(made(ids).logits, by_mask("suffice_window_5", ids))


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="give one that begins with 'suffice_'"):
        register_pattern("window_256", Window(256))
    with pytest.raises(ConfigError, match="holds none of sdpa"):
        register_pattern("suffice_sdpa", Window(256))
    with pytest.raises(ConfigError, match="pattern=256 is not a pattern"):
        register_pattern("suffice_window_256", 256)
    made = stock("suffice_window_5").train()
    for layer in made.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with pytest.raises(ConfigError, match="attention dropout in a stock model"):
        made(torch.randint(40, (1, 4)))
    layer, q = made.model.layers[0].self_attn, torch.zeros(1, 2, 3, 4)
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as FUNCTIONS

    with pytest.raises(ConfigError, match="this model's attention has softcap"):
        FUNCTIONS["suffice_window_5"](layer, q, q, q, None, softcap=30.0)
