"""`suffice fits`: one line, exit code 0 or 1, from a name, a configuration or a file."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from suffice.export import export_gguf
from suffice.models.gguf_format import open_gguf, write_gguf
from tests.export.models import NEAR, ROTARY, TURNING, language, saved
from tests.export.test_gguf import TOKENIZER

# a hybrid of one layer of attention in four, of Qwen3-Next's kind, by hand:
# state 4 * (4 * 8 * 8 + 3 * (2 * 2 * 8 + 4 * 8)) B for each of 3 layers, and 2 * 16 * 2 B a token
HYBRID = {
    "model_type": "qwen3_next", "hidden_size": 32, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 8,
    "num_experts": 0, "vocab_size": 10, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
}  # fmt: skip
STATE, TOKEN = 3 * 4 * (4 * 8 * 8 + 3 * 64), 2 * 16 * 2


@pytest.fixture
def hybrid(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(HYBRID))
    return path


def test_a_hybrid_is_counted_by_its_layers(suffice, hybrid):
    shown = json.loads(suffice("fits", hybrid, "--length", 1000, "--json").stdout)
    assert shown["bytes"]["kv_cache"] == STATE + 1000 * TOKEN
    assert (shown["fits"], shown["longest"]) == (None, None)


def test_what_a_configuration_leaves_out_is_counted_as_published(suffice):
    """DeepSeek-V3's weights have 8 bits, of which its paper tells and its config.json does not."""
    shown = json.loads(suffice("fits", "DeepSeek-V3", "--json").stdout)
    assert shown["bytes"]["weights"] == shown["parameters"]
    whole = json.loads(suffice("fits", "gpt-oss-20b", "--bits", 16, "--json").stdout)
    assert whole["bytes"]["weights"] == 2 * whole["parameters"]  # experts, too, which have 4 bits
    no = suffice("fits", "gpt-oss-20b", "--memory", "12 GiB")
    assert (no.exit_code, len(no.stdout.splitlines())) == (1, 1)
    assert "12.82 GiB counted" in no.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--length", 4096, "--memory", "24GiB"), True),  # room for 23,366
        (("--length", 4096, "--memory", "14.59GiB"), False),
        (("--length", 4096), False),
        (("--length", 4097), True),
    ],
)
def test_a_text_beyond_the_trained_length_is_said(suffice, words, said):
    shown = suffice("fits", "Llama 2 7B", *words).stdout
    assert ("trained on texts of 4,096 tokens" in shown) is said


def test_a_quantised_checkpoint_is_counted_in_its_bits(suffice, tmp_path):
    from suffice.models.configurations import published

    [config] = (row["config"] for row in published() if row.get("title") == "Qwen3 8B")
    path = tmp_path / "config.json"

    def fits(*words, **quantised):
        path.write_text(json.dumps(config | {"quantization_config": quantised}))
        return suffice("fits", path, "--length", 8192, "--memory", "12GiB", *words)

    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    head, maps = 2 * 151936 * 4096, 8190735360 - 2 * 151936 * 4096
    size = math.ceil((head * 16 + maps * (4 + 20 / 128)) / 8)
    shown = json.loads(fits("--json", **awq).stdout)
    assert (shown["bytes"]["weights"], shown["fits"]) == (size, True)
    more = json.loads(fits("--json", "--against", "weights:8", **awq).stdout)["difference"]
    assert more == head * 2 + maps - size
    assert fits(quant_method="aqlm").exit_code == 2
    given = json.loads(fits("--bits", 4, "--json", quant_method="aqlm").stdout)
    assert given["bytes"]["weights"] == math.ceil(8190735360 * 4.5 / 8)


@pytest.mark.parametrize("engine", ["suffice", "llama.cpp", "vllm"])
def test_the_longest_text_fits_and_one_more_token_does_not(suffice, hybrid, engine):
    words = ("fits", hybrid, "--cache-bits", 8, "--engine", engine, "--length")
    total = json.loads(suffice(*words, 700, "--json").stdout)["bytes"]["total"]
    for memory in (total, total - 1):
        limited = (*words[:-1], "--memory", f"{memory / 1000}kB", "--length")
        longest = json.loads(suffice(*limited, 9, "--json").stdout)["longest"]
        assert engine != "suffice" or longest == 700 - (memory < total)
        codes = [suffice(*limited, length).exit_code for length in (longest, longest + 1)]
        assert codes == [0, 1]


def test_a_change_shows_what_it_saves(suffice):
    words = ("fits", "Qwen3 8B", "--length", 8192, "--against", "gqa:2+window:512")
    first, other = (json.loads(suffice(*words, "--json").stdout))["models"]
    assert first["bytes"]["kv_cache"] == 36 * 2 * 8 * 128 * 2 * 8192
    assert other["bytes"]["kv_cache"] == 36 * 2 * 2 * 128 * 2 * 512
    assert first["parameters"] - other["parameters"] == 36 * 2 * 4096 * 6 * 128
    line = suffice(*words).stdout.splitlines()[1]
    assert line.startswith("gqa:2+window:512 takes ")
    assert "less" in line
    models = json.loads(suffice("fits", "Qwen3 8B", "--against", "Qwen3 4B", "--json").stdout)
    totals = [one["bytes"]["total"] for one in models["models"]]
    assert models["difference"] == totals[1] - totals[0] < 0


def test_the_exit_code_is_that_of_the_first_and_each_is_counted_by_itself(suffice):
    words = ("--memory", "7GiB", "--batch", 2, "--bits", 8, "--cache-bits", 8, "--json")
    codes, models = [], []
    for pair in (("Qwen3 8B", "Qwen3 4B"), ("Qwen3 4B", "Qwen3 8B")):
        result = suffice("fits", pair[0], "--against", pair[1], *words)
        codes.append(result.exit_code)
        models.append(json.loads(result.stdout)["models"])
    assert codes == [1, 0]
    assert models[0] == models[1][::-1]
    assert models[1][0] == json.loads(suffice("fits", "Qwen3 4B", *words).stdout)
    each = models[0][0]["parameters"] * (8 + 16 / 128) / 8
    assert models[0][0]["bytes"]["weights"] == math.ceil(each)
    assert [(one["fits"], one["longest"] > 4096) for one in models[1]] == [
        (True,) * 2,
        (False,) * 2,
    ]
    assert "less" in suffice("fits", "Qwen3 8B", "--against", "Qwen3 4B").stdout
    assert "more" in suffice("fits", "Qwen3 4B", "--against", "Qwen3 8B").stdout


EXPERTS = {
    "model_type": "qwen3_moe", "hidden_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 5,
    "num_experts_per_tok": 2, "moe_intermediate_size": 12, "vocab_size": 11,
    "tie_word_embeddings": False, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
LAYER = 2 * 32 * 32 + 2 * 32 * 16 + 2 * 8 + 5 * (3 * 32 * 12 + 32) + 2 * 32


@pytest.mark.parametrize(
    ("bits", "each"), [(4, 4 + 16 / 32), (8, 8 + 16 / 128), (16, 16), (32, 32)]
)
def test_bits_hold_for_every_part_and_the_batch_for_every_text(suffice, tmp_path, bits, each):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(EXPERTS))
    words = ("--bits", bits, "--batch", 3, "--cache-bits", 32, "--length", 70, "--json")
    shown = json.loads(suffice("fits", path, *words).stdout)
    assert shown["parameters"] == 3 * LAYER + 2 * 11 * 32 + 32
    assert shown["active_parameters"] == shown["parameters"] - 3 * 3 * 3 * 32 * 12
    assert shown["bytes"]["weights"] == math.ceil(shown["parameters"] * each / 8)
    assert shown["bytes"]["kv_cache"] == 3 * 70 * 3 * 2 * 16 * 4
    assert shown["bytes"]["total"] == sum(shown["bytes"][k] for k in shown["bytes"] if k != "total")


def test_an_engine_allocates_whole_cells_and_pages(suffice):
    words = ("fits", "Mistral 7B", "--length", 8000, "--json", "--engine")
    token = 32 * 2 * 8 * 128 * 2
    cells = json.loads(suffice(*words, "llama.cpp").stdout)["bytes"]["kv_cache"]
    pages = json.loads(suffice(*words, "vllm").stdout)["bytes"]["kv_cache"]
    assert cells == token * (4096 + 512)
    assert pages == token * 16 * (500 + 1)  # a window that may begin inside a page


def test_a_file_is_measured_rather_than_counted(suffice, tmp_path):
    sizes = {"depth": 2, "vocabulary_size": TOKENIZER.vocabulary_size}
    saved(tmp_path / "m", language(TURNING, **ROTARY, **sizes))
    export_gguf(tmp_path / "m", tmp_path / "model.gguf", kind="f32")
    shown = json.loads(suffice("fits", tmp_path / "model.gguf", "--length", 9, "--json").stdout)
    assert shown["basis"]["weights"] == "measured here"
    tensors = open_gguf(tmp_path / "model.gguf").tensors.values()
    assert shown["bytes"]["weights"] == sum(tensor.nbytes for tensor in tensors)
    assert shown["parameters"] == sum(math.prod(tensor.shape) for tensor in tensors)
    memory = f"{(shown['bytes']['total'] + 5000) / 1000}kB"
    words = ("fits", tmp_path / "model.gguf", "--memory", memory, "--json")
    longest = json.loads(suffice(*words).stdout)["longest"]
    assert longest > 9
    assert suffice(*words, "--length", longest).exit_code == 0
    assert suffice(*words, "--length", longest + 1).exit_code == 1
    counted = json.loads(suffice("fits", tmp_path / "model.gguf", "--bits", 16, "--json").stdout)
    assert counted["bytes"]["weights"] == 2 * shown["parameters"]
    for name, size in (("a", 700), ("b", 4000)):
        (tmp_path / f"{name}.safetensors").write_bytes(bytes(size))
    (tmp_path / "config.json").write_text(json.dumps(EXPERTS))
    stored = json.loads(suffice("fits", tmp_path, "--json").stdout)
    assert (stored["bytes"]["weights"], stored["basis"]["weights"]) == (4700, "measured here")
    words = (tmp_path / "model.gguf", "--length", 9, "--against", "gqa:1", "--json")
    _, less = json.loads(suffice("fits", *words).stdout)["models"]
    assert less["basis"]["weights"] == "estimated"
    assert less["bytes"]["weights"] < shown["bytes"]["weights"]


def test_damaged_files_are_refused(suffice, tmp_path):
    write_gguf(tmp_path / "empty.gguf", {"general.architecture": "llama"}, [])
    sizes = {"depth": 2, "vocabulary_size": TOKENIZER.vocabulary_size}
    near = replace(TURNING, pattern=NEAR)
    saved(tmp_path / "m", language([near, TURNING], **ROTARY, **sizes))
    export_gguf(tmp_path / "m", tmp_path / "near.gguf", kind="f32")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "cut.json").write_text('{"hidden_size": 64')
    for name, named in (
        ("empty.gguf", "token_embd"),
        ("near.gguf", "by layer"),
        ("list.json", "object"),
        ("cut.json", "cut.json"),
        ("none.gguf", "none.gguf"),
    ):
        refused = suffice("fits", tmp_path / name)
        assert refused.exit_code == 2, name
        assert named in refused.message


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("nothing here",), "nothing here"),
        (("Qwen3 8B", "--memory", "much"), "much"),
        (("Qwen3 8B", "--engine", "mine"), "mine"),
        (("Qwen3 8B", "--bits", 5), "--bits"),
        (("Qwen3 8B", "--length", 0), "length=0"),
        (("Qwen3 8B", "--against", "gqa:3"), "3"),
        (("Qwen3 8B", "--against", "window:9+window:9"), "once"),
        (("Qwen3-Next 80B-A3B", "--against", "window:512"), "recurrent"),
        (("Qwen3 8B", "--engine", "vllm", "--cache-bits", 4), "vllm"),
    ],
)
def test_wrong_words_are_refused(suffice, words, named):
    refused = suffice("fits", *words)
    assert refused.exit_code == 2
    assert named in refused.message


def test_code_of_a_checkpoint_is_named_and_not_run(suffice, tmp_path):
    marker = tmp_path / "ran"
    (tmp_path / "modeling_own.py").write_text(f"open({str(marker)!r}, 'w')")
    config = HYBRID | {"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
    plain = {name: value for name, value in config.items() if "linear" not in name}
    (tmp_path / "config.json").write_text(json.dumps(plain | {"model_type": "own"}))
    shown = suffice("fits", tmp_path)
    assert shown.exit_code == 0
    assert "not run" in shown.stdout
    assert not marker.exists()


def test_the_papers_model_is_answered_with_days(suffice):
    words = ("fits", "efficient_1b", "--train", "--gpus", 64, "--length", 2048, "--tokens", 3e11)
    shown = json.loads(suffice(*words, "--tflops", 300, "--utilisation", 0.5, "--json").stdout)
    assert shown["bytes"]["parameters"] == 4 * 1_140_390_912 / 64
    rate = 64 * 300e12 * 0.5
    assert shown["days"] == pytest.approx(
        shown["flops_per_step"] / (64 * 2048) * 3e11 / rate / 86400
    )
    need = shown["bytes"]["total"]
    for memory, code in ((need, 0), (need - 1, 1)):
        assert suffice(*words, "--memory", f"{memory}B").exit_code == code


@pytest.mark.parametrize(
    "words",
    [
        ("--train", "--engine", "vllm"),
        ("--train", "--cache-bits", 8),
        ("--train", "--against", "gqa:2"),
        ("--train", "--bits", 8),
        ("--train", "--gpus", 0),
        ("--train", "--utilisation", 1.1),
        ("--train", "--tokens", 0),
        ("--gpus", 2),
        ("--tokens", 5),
        ("--checkpointing",),
    ],
)
def test_options_that_say_nothing_are_refused(suffice, words):
    done = suffice("fits", "Qwen3 8B", *words)
    assert done.exit_code == 2
    assert words[-2 if len(words) > 1 else 0].lstrip("-") in done.stderr
