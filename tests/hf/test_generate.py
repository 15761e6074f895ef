"""Generating through transformers gives what the library gives."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache, pipeline

from suffice.errors import ConfigError, MaskError, ShapeError, StateError
from suffice.hf import SufficeCache, SufficeForCausalLM, hf_tokenizer
from suffice.hf.cache import CACHE_NAME, CACHE_NAMES
from suffice.hf.model import REDUNDANT
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.testing import assert_close
from suffice.text import BPE, Characters
from tests.hf.small import MECHANISMS, left_padded, model, tokens

WAYS = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 20, "temperature": 1.3},
    "beams": {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
}


def written(of, ids, *, seed=4, new=12, **options):
    torch.manual_seed(seed)
    return of.generate(ids, max_new_tokens=new, pad_token_id=0, **options)


CASES = [(mechanism, "greedy") for mechanism in MECHANISMS] + [
    (mechanism, way) for mechanism in ("efficient", "infini") for way in ("sampling", "beams")
]


@pytest.mark.parametrize(("mechanism", "way"), CASES)
def test_a_cache_changes_nothing(mechanism, way):
    made = model(mechanism)
    cached = written(made, tokens(), **WAYS[way])
    assert torch.equal(cached, written(made, tokens(), use_cache=False, **WAYS[way]))
    assert len(cached.unique()) > 4


@pytest.mark.parametrize(
    ("positions", "mechanism"),
    [*(("learned", one) for one in MECHANISMS), ("sinusoidal", "super_attention")],
)
def test_left_padding_changes_nothing(positions, mechanism):
    made = model(mechanism, positions=positions)
    ids, mask = left_padded()
    got = made(ids, attention_mask=mask).logits
    alone = made(ids[1:, 4:]).logits
    assert_close(got[1:, 4:], alone)
    lm = made.to_suffice()
    assert_close(got[mask.bool()], lm(ids, valid=mask.bool())[mask.bool()])
    both = written(made, ids, attention_mask=mask, do_sample=False)
    assert torch.equal(both[1:, 4:], written(made, ids[1:, 4:], do_sample=False))
    beams = written(made, ids, attention_mask=mask, **WAYS["beams"])
    assert torch.equal(beams[2:, 4:], written(made, ids[1:, 4:], **WAYS["beams"]))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_any_pieces_give_the_whole(mechanism):
    made, ids = model(mechanism), tokens(length=12)
    want, cache, parts = made(ids).logits, None, []
    for a, b in ((0, 5), (5, 6), (6, 6 + 4), (10, 12)):
        out = made(ids[:, a:b], **{CACHE_NAMES[b % 2]: cache}, use_cache=True)
        cache = out[CACHE_NAME]
        parts.append(out.logits)
    assert_close(torch.cat(parts, dim=1), want)
    assert cache.get_seq_length() == 12
    assert "length=12" in repr(cache)
    longer = torch.cat([ids, ids[:, :3]], dim=1)
    whole = {"attention_mask": torch.ones_like(longer), "do_sample": False}
    continued = written(made, longer, cache=cache, **whole)
    assert torch.equal(continued, written(made, longer, use_cache=False, **whole))


@pytest.mark.parametrize(
    "memory", [Dynamic(), Static(30), Rolling(6), Quantised(bits=8, recent=4, block=4, group=4)]
)
@torch.no_grad()
def test_a_memory_of_choice(memory):
    made, ids = model("sliding_window" if isinstance(memory, Rolling) else "standard"), tokens()
    cache = SufficeCache(made.state(memory))
    assert (cache.batch_size, cache.is_initialized) == (-1, False)
    got = written(made, ids, do_sample=False, **{CACHE_NAMES[memory.lossy]: cache})
    if not memory.lossy:
        state = made.to_suffice().state(memory)
        lm, want, step = made.to_suffice(), ids, ids
        for _ in range(12):
            step = lm(step, state=state)[:, -1:].argmax(-1)
            want = torch.cat([want, step], dim=1)
        assert torch.equal(got, want)
    assert cache.get_seq_length() == 20
    assert cache.get_max_length() == (30 if isinstance(memory, Static) else -1)
    assert (cache.batch_size, cache.is_initialized, len(cache)) == (2, True, 2)
    assert cache.nbytes == cache.state.nbytes > 0
    assert cache.get_mask_sizes(3, 0) == (23, 0)


@torch.no_grad()
def test_the_configured_memory_is_the_default():
    made = model("sliding_window", memory=Rolling(8).to_json())
    cache = made(tokens(), use_cache=True)[CACHE_NAME]
    assert cache.state.layers[0].memory == Rolling(8)
    assert SufficeCache(made.state(Dynamic())).state.layers[0].memory == Dynamic()


def test_names_of_transformers_caches():
    made, ids = model(), tokens()
    want = written(made, ids, do_sample=False)
    for name in ("dynamic", "static"):
        assert torch.equal(want, written(made, ids, do_sample=False, cache_implementation=name))
    out = written(
        made, ids, do_sample=False, cache_implementation="quantized", cache_config={"nbits": 4},
        return_dict_in_generate=True,
    )  # fmt: skip
    assert out[CACHE_NAME].state.layers[0].memory == Quantised(bits=4)
    with pytest.raises(ConfigError, match="unknown cache_implementation 'offloaded'"):
        written(made, ids, cache_implementation="offloaded")
    options = {"cache_implementation": "quantized", "cache_config": {"bits": 4}}
    with pytest.raises(ConfigError, match="unknown option of cache_config 'bits'"):
        written(made, ids, **options)


def test_the_options_of_other_libraries_caches_choose_our_own():
    stock = {"backend": "quanto", "nbits": 4, "q_group_size": 8, "residual_length": 6}
    with pytest.warns(UserWarning, match="cache_config's backend is not used"):
        out = written(
            model(), tokens(), cache_implementation="quantized", cache_config=stock,
            return_dict_in_generate=True,
        )  # fmt: skip
    memory = out[CACHE_NAME].state.layers[0].memory
    assert memory == Quantised(bits=4, group=8, recent=6)


@pytest.mark.parametrize("mechanism", ["standard", "efficient", "linear"])
def test_it_stops_at_a_string(mechanism):
    words = Characters.of(["abcdefghijklmnopqrstuvwxyz .,;:-!?ABCDEFGHIJKLMNOP"])
    made = model(mechanism, vocab_size=words.vocabulary_size)
    tokenizer, ids = hf_tokenizer(words), tokens()[:1]
    whole = written(made, ids, do_sample=False)[0, ids.shape[1] :]
    third = words.decode([int(whole[2])])
    first = next(n for n, i in enumerate(whole.tolist()) if words.decode([i]) == third)
    got = written(made, ids, do_sample=False, stop_strings=[third], tokenizer=tokenizer)
    assert torch.equal(got[0, ids.shape[1] :], whole[: first + 1])


@torch.no_grad()
def test_the_interface_of_a_cache():
    made, ids = model(), tokens(3)
    cache = SufficeCache(made.state())
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.crop(0)
    made(ids[:, :8], cache=cache)
    kept = copy.deepcopy(cache)
    assert cache.is_croppable
    assert not cache.is_compileable
    assert cache.is_sliding == cache.is_linear == [False, False]
    made(ids[:, 8:], cache=cache)
    cache.crop(-1)
    last = ids[:, 8:]
    want = made(last, cache=copy.deepcopy(kept)).logits
    assert_close(made(last, cache=cache).logits, want)
    cache.crop(8)
    order = torch.tensor([2, 0, 0])
    cache.reorder_cache(order)
    assert_close(made(last[order], cache=copy.deepcopy(cache)).logits, want[order])
    cache.batch_select_indices(torch.tensor([True, False, True]))
    cache.batch_repeat_interleave(2)
    rows = torch.tensor([2, 2, 0, 0])
    assert_close(made(last[rows], cache=cache).logits, want[rows])
    cache.reset()
    assert cache.get_seq_length() == 0
    with pytest.raises(StateError, match="is filled by its own model"):
        cache.update(torch.zeros(1), torch.zeros(1), 0)


def test_drafts_of_a_smaller_model_change_nothing():
    made, draft = model(), model("efficient", seed=7)
    ids = tokens(1)
    want = written(made, ids, do_sample=False)
    assert torch.equal(want, written(made, ids, do_sample=False, assistant_model=draft))
    again = torch.cat([ids, ids], dim=1)
    want = written(made, again, do_sample=False)
    assert torch.equal(want, written(made, again, do_sample=False, prompt_lookup_num_tokens=2))


@pytest.mark.parametrize(
    ("mechanism", "name"), [("performer", "Favor"), ("linear", "Elu"), ("infini", "Infini")]
)
def test_drafts_are_refused_where_layers_keep_sums(mechanism, name):
    sums, ids = model(mechanism), tokens(1)
    match = f"^{name} keeps sums"
    with pytest.raises(ConfigError, match=match):
        written(sums, ids, do_sample=False, prompt_lookup_num_tokens=2)
    for large, small in ((sums, model()), (model(), sums)):
        with pytest.raises(ConfigError, match=match):
            written(large, ids, do_sample=False, assistant_model=small)


def test_features_can_be_given():
    made, ids = model("efficient"), tokens()
    rows = made.get_input_embeddings()(ids)
    assert_close(made(inputs_embeds=rows).logits, made(ids).logits, "exact")
    got = made.generate(inputs_embeds=rows, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert torch.equal(got, written(made, ids, new=5, do_sample=False)[:, 9:])
    with pytest.raises(ConfigError, match="exactly one of input_ids and inputs_embeds"):
        made(ids, inputs_embeds=rows)
    made.set_input_embeddings(torch.nn.Embedding(50, 32))
    assert not torch.equal(made(ids).logits, made(inputs_embeds=rows).logits)


def test_documents_by_their_positions():
    made, ids = model("super_attention"), tokens(1, 9)
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    got = made(ids, position_ids=places).logits
    want = torch.cat([made(ids[:, :4]).logits, made(ids[:, 4:]).logits], dim=1)
    assert_close(got, want)
    with pytest.raises(ConfigError, match="position_ids do not count the real tokens"):
        made(ids, position_ids=places + 1)
    cache = made(ids, use_cache=True)[CACHE_NAME]
    with pytest.raises(ConfigError, match="position_ids do not count the real tokens"):
        made(ids[:, :1], position_ids=torch.tensor([[3]]), cache=cache)


@pytest.mark.parametrize("mechanism", ["standard", "super_attention", "linear"])
def test_a_row_of_several_documents_may_be_longer_than_the_model_reads(mechanism):
    made, ids = model(mechanism), tokens(1, 60)
    places = torch.cat([torch.arange(35), torch.arange(25)])[None]
    want = torch.cat([made(ids[:, :35]).logits, made(ids[:, 35:]).logits], dim=1)
    assert_close(made(ids, position_ids=places).logits, want)
    with pytest.raises(ShapeError):
        made(ids, position_ids=torch.cat([torch.arange(45), torch.arange(15)])[None])


def test_arguments_that_say_the_same_again_change_nothing():
    made, ids = model(), tokens(1, 9)
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    want = made(ids, position_ids=places).logits
    given = dict.fromkeys(REDUNDANT, torch.tensor([0, 4, 9], dtype=torch.int32))
    assert torch.equal(made(ids, position_ids=places, is_causal=True, **given).logits, want)


@torch.no_grad()
def test_hidden_states_and_attentions_are_returned():
    made, ids = model("optimised"), tokens()
    out = made(ids, use_cache=False, output_hidden_states=True, output_attentions=True)
    assert len(out.hidden_states) == 3
    assert_close(made.lm_head(out.hidden_states[-1]), out.logits, "exact")
    assert [tuple(one.shape) for one in out.attentions] == [(2, 4, 9, 9)] * 2
    assert_close(out.attentions[0].sum(-1), torch.ones(2, 4, 9))
    assert out.get(CACHE_NAME) is None
    assert made(ids, logits_to_keep=2).logits.shape == (2, 2, 50)
    chosen = made(ids, logits_to_keep=torch.tensor([0, 5])).logits
    assert_close(chosen, out.logits[:, [0, 5]], "exact")
    assert isinstance(made(ids, return_dict=False), tuple)
    with pytest.raises(ConfigError, match="output_attentions with a cache"):
        made(ids, output_attentions=True, use_cache=True)
    assert made(ids, output_attentions=True).get(CACHE_NAME) is None


def test_unsupported_arguments_are_refused():
    made, ids = model(), tokens()
    with pytest.raises(ConfigError, match="does not accept head_mask"):
        made(ids, head_mask=ids)
    with pytest.raises(ConfigError, match="does not accept is_causal=False"):
        made(ids, is_causal=False)
    with pytest.raises(ConfigError, match="cu_seq_lens_q without position_ids"):
        made(ids, cu_seq_lens_q=torch.tensor([0, 9, 18]))
    with pytest.raises(ConfigError, match="cache is a DynamicCache"):
        made(ids, cache=DynamicCache())
    both = dict.fromkeys(CACHE_NAMES, SufficeCache(made.state()))
    for call in (made, made.generate):
        with pytest.raises(ConfigError, match="cache and past_key_values"):
            call(ids, **both)
    with pytest.raises(MaskError, match=r"attention_mask is \(2, 1, 9, 9\)"):
        made(ids, attention_mask=torch.ones(2, 1, 9, 9))
    with pytest.raises(ShapeError, match=r"attention_mask has shape \(2, 8\) for 2 rows of 0"):
        made(ids, attention_mask=torch.ones(2, 8))


@torch.no_grad()
def test_an_exported_model_reads_any_mask():
    made, (ids, mask) = model("super_attention"), left_padded()
    given = {"attention_mask": torch.ones_like(mask), "use_cache": False}
    exported = torch.export.export(made, (ids,), given).module()
    got = exported(ids, attention_mask=mask, use_cache=False).logits
    assert_close(got[mask.bool()], made(ids, attention_mask=mask).logits[mask.bool()])
    assert not torch.equal(got, made(ids).logits)


TEXT = ["the cat sat on the mat and the dog sat on the log " * 3]


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_pipeline_and_tokenizer(kind, tmp_path):
    ours = BPE.train(TEXT, 266) if kind == "bpe" else Characters.of(TEXT)
    theirs = hf_tokenizer(ours)
    assert theirs("the cat sat")["input_ids"] == ours.encode("the cat sat")
    assert theirs.decode(ours.encode("the dog")) == "the dog"
    assert theirs.padding_side == "left"
    assert theirs.pad_token_id == ours.end
    lm = model(vocab_size=ours.vocabulary_size).to_suffice()
    made = SufficeForCausalLM.from_suffice(lm, ours)
    assert made.config.eos_token_id == ours.end
    made.save_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path)
    write = pipeline("text-generation", model=str(tmp_path), device="cpu")
    got = write("the cat", max_new_tokens=8, do_sample=False)[0]["generated_text"]
    ids = made.generate(
        torch.tensor([ours.encode("the cat")]), max_new_tokens=8, do_sample=False
    )[0].tolist()  # fmt: skip
    ids = ids[:-1] if ids[-1] == ours.end else ids
    assert got == ours.decode(ids)
