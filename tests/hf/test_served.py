"""An engine such as vLLM can compute the attention of the mechanisms that it knows.

The engine here is what such a backend registers: a function under its name and no mask function.
It is given one row in which several texts follow each other, and masks by itself.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from transformers import AttentionInterface, AutoModel

from suffice.errors import ConfigError
from suffice.hf import SufficeConfig, check_servable
from suffice.hf import attention as ours
from suffice.models import LMConfig
from suffice.patterns import Causal, Window
from suffice.positions import Alibi, Rope
from suffice.presets import preset
from suffice.spec import AttentionSpec
from suffice.testing import assert_close
from tests.hf.small import config, model, tokens

SEEN = []


def engine(module, q, k, v, attention_mask, *, scaling, sliding_window, attention_instances, **_):
    """Compute softmax attention in plain loops, each text by itself."""
    assert attention_mask is None
    lengths = attention_instances[module.layer_idx]
    assert sum(lengths) == q.shape[2]
    SEEN.append((module.layer_idx, sliding_window))
    groups, outs, first = q.shape[1] // k.shape[1], [], 0
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    for length in lengths:
        part = slice(first, first + length)
        scores = q[:, :, part] @ k[:, :, part].transpose(2, 3) * scaling
        near = torch.ones(length, length).tril().bool()
        if sliding_window is not None:
            near &= torch.ones(length, length).triu(1 - sliding_window).bool()
        outs.append(scores.masked_fill(~near, -torch.inf).softmax(-1) @ v[:, :, part])
        first += length
    return torch.cat(outs, dim=2).transpose(1, 2), None


@pytest.fixture(autouse=True)
def registered():
    AttentionInterface.register("vllm", engine)
    SEEN.clear()
    yield
    AttentionInterface._global_mapping.pop("vllm")


def roped(d_model=32, **axes):
    return AttentionSpec(d_model=d_model, num_heads=4, position=Rope(), **axes)


SERVED = {
    "standard": config("standard"),
    "optimised": config("optimised"),
    "efficient": config("efficient", positions="sinusoidal"),
    "gqa": config("gqa"),
    "normalised": config("qk_norm"),
    "mqa": config("mqa"),
    "windows": config("sliding_window"),
    "roped": SufficeConfig.of(
        LMConfig(vocabulary_size=50, length=40, d_model=32, depth=2, mlp_width=48,
                 positions="none", norm="rms", activation="swiglu", bias=False),
        [roped(pattern=Window(4) & Causal(), num_kv_heads=2), roped(pattern=Causal())],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SERVED)
def test_an_engine_gives_the_same(name):
    config = SERVED[name]
    torch.manual_seed(0)
    own = AutoModel.from_config(config).eval()
    with torch.device("meta"):
        served = AutoModel.from_config(config, attn_implementation="vllm")
    assert all(tensor.is_meta for tensor in served.state_dict().values())
    served.load_state_dict(own.state_dict(), assign=True)
    own.config._attn_implementation = "eager"
    served.eval()
    served.config._attn_implementation = "vllm"
    for block in served.blocks:
        assert block.attention.is_causal
        block.attention.config = served.config
    texts = [tokens(1, 7), tokens(1, 5, seed=2)]
    lengths = [7, 5]
    places = torch.cat([torch.arange(n) for n in lengths])[None]
    out = served(
        input_ids=torch.cat(texts, dim=1),
        position_ids=places,
        use_cache=False,
        attention_instances=dict.fromkeys(range(2), lengths),
        return_dict=False,
    )
    own.config._attn_implementation = "eager"
    want = torch.cat([own(text).last_hidden_state for text in texts], dim=1)
    assert_close(out[0], want)
    windows = [None if t == "full_attention" else config.sliding_window for t in config.layer_types]
    assert list(enumerate(windows)) == SEEN


@pytest.mark.parametrize("mechanism", ["super_attention", "performer", "linear", "sparse_strided"])
def test_what_an_engine_cannot_compute_is_refused(mechanism):
    made = model(mechanism).model
    made.set_attn_implementation("vllm")
    with pytest.raises(ConfigError, match="an engine that computes attention itself cannot serve"):
        made(tokens(), position_ids=torch.arange(9)[None], use_cache=False)


def test_refusals_name_the_axis():
    spec = AttentionSpec(d_model=8, num_heads=2, pattern=Causal(), position=Alibi())
    with pytest.raises(ConfigError, match=r"cannot serve position=Alibi\(\)"):
        check_servable(spec)
    spec = AttentionSpec(d_model=8, num_heads=2, pattern=Causal(), shares=3)
    with pytest.raises(ConfigError, match="cannot serve shares=3"):
        check_servable(spec)
    spec = preset("infini", 8, 2, segment=4, causal=True)
    with pytest.raises(ConfigError, match=r"cannot serve past=Infini"):
        check_servable(spec)
    with pytest.raises(ConfigError, match=r"pattern=Full\(\)"):
        check_servable(AttentionSpec(d_model=8, num_heads=2))


def test_an_engine_keeps_the_past_itself():
    made = model().model
    made.set_attn_implementation("vllm")
    for options in ({"use_cache": True, "position_ids": tokens()}, {"use_cache": False}):
        with pytest.raises(ConfigError, match="must be an engine that keeps the past"):
            made(tokens(), **options)
    made.config._attn_implementation = "sdpa"
    with pytest.raises(ConfigError, match="attn_implementation='sdpa'"):
        made(tokens(), position_ids=tokens(), use_cache=False)


def test_the_call_that_backends_look_for_is_there():
    assert "ALL_ATTENTION_FUNCTIONS.get_interface(" in inspect.getsource(ours)
