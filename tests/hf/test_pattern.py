"""Patterns as attention of stock models."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    StaticCache,
)

from suffice.convert.sources import open_source
from suffice.errors import CheckpointError, ConfigError
from suffice.hf import SufficeForCausalLM, register_pattern
from suffice.ops import reference  # noqa: F401 - the package's ops are registered
from suffice.patterns import Causal, Global, PerHead, Strided, Window
from suffice.testing import assert_close, drawn
from tests.hf.small import model

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
    got = made(ids, cache=cache).logits
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
    with pytest.raises(ConfigError, match="attention_dropout = 0"):
        made(torch.randint(40, (1, 4)))
    layer, q = made.model.layers[0].self_attn, torch.zeros(1, 2, 3, 4)
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as FUNCTIONS

    with pytest.raises(ConfigError, match="this model's attention has position_bias"):
        FUNCTIONS["suffice_window_5"](layer, q, q, q, None, position_bias=q)
    bert = BertModel(BertConfig(**BERT, attn_implementation="suffice_two_sided")).train()
    with pytest.raises(ConfigError, match="attention_probs_dropout_prob = 0"):
        bert(torch.randint(40, (1, 4)))


SIZES = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT = SIZES | {"intermediate_size": 48}
CAUSAL = BERT | {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "sliding_window": 64}


@pytest.mark.parametrize("config", [
    Gemma2Config(**CAUSAL, attn_logit_softcapping=2.0),
    GptOssConfig(**CAUSAL, num_local_experts=2, num_experts_per_tok=1),
], ids=lambda config: config.model_type)  # fmt: skip
def test_caps_and_sinks_of_stock_models(config):
    config._attn_implementation = "eager"
    made, ids = (
        drawn(AutoModelForCausalLM.from_config(config), seed=1).eval(),
        torch.arange(24)[None],
    )
    allowed = PATTERNS["suffice_window_5"].mask(24, 24)[None, None]
    with torch.no_grad():
        want = made(ids, attention_mask=torch.where(allowed, 0.0, -torch.inf)).logits
        made.set_attn_implementation("suffice_window_5")
        assert_close(made(ids).logits, want, n=64)


LOAD = """
import sys, torch
from transformers import LlamaForCausalLM
if sys.argv[2] == "registered":
    from suffice.hf import register_pattern
    from suffice.patterns import Causal, Window
    register_pattern("suffice_window_5", Window(5) & Causal())
made = LlamaForCausalLM.from_pretrained(sys.argv[1]).eval()
torch.save(made(torch.arange(20)[None]).logits, sys.argv[3])
"""


@pytest.mark.parametrize("where", ["registered", "elsewhere"])
def test_a_saved_model_keeps_its_pattern_or_is_refused(where, tmp_path):
    made = stock("eager")
    made.set_attn_implementation("suffice_window_5")
    made.save_pretrained(tmp_path)
    command = [sys.executable, "-c", LOAD, str(tmp_path), where, str(tmp_path / "logits")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if where == "registered":
        assert ran.returncode == 0, ran.stderr
        assert_close(torch.load(tmp_path / "logits"), made(torch.arange(20)[None]).logits)
    else:
        assert ran.returncode != 0
        assert "suffice_window_5" in ran.stderr
    with pytest.raises(CheckpointError, match="suffice_window_5"):  # as full attention nowhere
        open_source(tmp_path)


def test_a_model_that_is_set_back_names_no_pattern():
    made = stock("suffice_window_5")
    assert made.config.to_dict()["attn_implementation"] == "suffice_window_5"
    made.set_attn_implementation("eager")
    assert "attn_implementation" not in made.config.to_dict()


def test_sdpa_is_another_name_of_own_attention():
    own = model("standard")
    named = SufficeForCausalLM._from_config(own.config, attn_implementation="sdpa").eval()
    named.load_state_dict(own.state_dict())
    ids = torch.randint(40, (2, 9))
    assert_close(named(ids).logits, own(ids).logits, "exact")
