"""`suffice generate`: text as it comes, the same as the library's."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest

from suffice import AttentionSpec
from suffice.cli.options import parse_memory
from suffice.errors import ConfigError
from suffice.generate import Greedy, Sample, generate
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.models import LMConfig, folder
from suffice.ops.native import library
from suffice.patterns import Causal
from suffice.testing import drawn
from suffice.text import Characters
from suffice.text.tokenizer import TextStream, prompt_ids

TEXT = "to be or not to be"
SPEC = AttentionSpec(d_model=8, num_heads=2, pattern=Causal())
# what standard error ends with, and holds nothing else
RATES = r"prompt [\d,]+\.\d tokens/s, decode ([\d,]+\.\d tokens/s|one token, no rate)"
LAST = rf"\d+ tokens(; {RATES})?; steps: (native \(\w+\)|torch \(.+\))\n"


def saved(path, *, seed=1, text=TEXT):
    tokenizer = Characters.of([text])
    sizes = {"vocabulary_size": tokenizer.vocabulary_size, "length": 64, "d_model": 8}
    config = LMConfig(**sizes, depth=1, mlp_width=8)
    lm = drawn(config.build(SPEC), seed=seed)
    folder.save(path, lm, tokenizer)
    return lm.eval(), tokenizer


@pytest.fixture
def run(tmp_path):
    return saved(tmp_path / "run")


def written(run, **options):
    lm, tokenizer = run
    ids = tokenizer.encode("to be")
    stop = () if tokenizer.end is None else (tokenizer.end,)
    got = generate(lm, [ids], max_new_tokens=20, stop=stop, **options).row(0)
    return tokenizer.decode([t for t in got if t not in stop]) + "\n"


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), {"sampling": Sample(temperature=0.8)}),
        (
            ("--temperature", 2, "--top-k", 5, "--top-p", 0.9, "--min-p", 0.01, "--seed", 3),
            {"sampling": Sample(temperature=2.0, top_k=5, top_p=0.9, min_p=0.01, seed=3)},
        ),
        (("--temperature", 0, "--memory", "static:30"), {"sampling": Greedy()}),
        (
            ("--memory", "rolling:9:2", "--quantise-memory", 8),
            {
                "sampling": Sample(temperature=0.8),
                "memory": Quantised(Rolling(9, sinks=2), bits=8),
            },
        ),
        (("--beams", 3), {"beams": 3}),
    ],
)
def test_the_text_is_the_librarys(suffice, run, words, options):
    result = suffice("generate", "run", "--prompt", "to be", "--tokens", 20, *map(str, words))
    assert result.exit_code == 0
    assert re.fullmatch(LAST, result.stderr), result.stderr
    assert result.stdout == written(run, **options)


def test_a_draft_changes_no_greedy_text(suffice, run, tmp_path):
    saved(tmp_path / "small", seed=2)
    words = ("generate", "run", "--prompt", "to be", "--tokens", 20, "--temperature", 0)
    result = suffice(*words, "--draft", "small")
    assert (result.exit_code, result.stdout) == (0, written(run))
    saved(tmp_path / "other", text="another alphabet")
    result = suffice(*words, "--draft", "other")
    assert result.exit_code == 2
    assert "--draft other has another tokenizer" in result.message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--memory", "rolling"), "write rolling:W or rolling:W:SINKS"),
        (("--quantise-memory", 5), "bits=5"),
        (("--quantise-memory", "8:3"), "value_bits=3"),
        (("--quantise-memory", "8:"), "KEYS:VALUES"),
        (("--temperature", 0, "--top-k", 3), "--top-k with --temperature 0, which does not sample"),
        (("--beams", 2, "--min-p", 0.1), "--min-p with --beams 2, which does not sample"),
        (
            ("--beams", 2, "--temperature", 0.5),
            "--temperature with --beams 2, which does not sample",
        ),
        (("--tokens", 0), "--tokens 0: give at least 1"),
        (("--beams", 0), "--beams 0: give at least 1"),
        (("--memory", "static:9", "--tokens", 20), "which has 9"),
        (("--impl", "magic"), "unknown impl 'magic'"),
    ],
)
def test_refusals(suffice, run, words, said):
    result = suffice("generate", "run", "--prompt", "to be", *words)
    assert result.exit_code == 2
    assert said in result.message
    assert result.stdout == ""  # the prompt comes with the first token


def test_the_context_slides_where_positions_end(suffice, run, tmp_path):
    result = suffice("generate", "run", "--prompt", "to be", "--tokens", 99)
    assert result.exit_code == 0
    assert result.stderr.startswith("99 tokens; ")
    assert result.stderr.endswith("; the context slid: the model has 64 positions\n")
    assert len(result.stdout) == len("to be") + 99 + 1
    fits = suffice("generate", "run", "--prompt", "to be", "--tokens", 60)
    assert fits.stderr.startswith("60 tokens; ")
    assert "slid" not in fits.stderr
    assert result.stdout.startswith(fits.stdout.rstrip("\n"))
    limited = suffice("generate", "run", "--prompt", "to be", "--memory", "static:9")
    assert limited.stderr.startswith("5 tokens; ")
    saved(tmp_path / "small", seed=2)
    drafted = suffice("generate", "run", "--prompt", "to be", "--draft", "small")
    assert drafted.stderr.startswith("256 tokens; ")
    long = suffice("generate", "run", "--prompt", "to be " * 20, "--tokens", 3)
    assert long.exit_code == 0


def test_json_has_the_text_and_both_rates(suffice, run):
    words = ("generate", "run", "--prompt", "to be", "--tokens", 20, "--temperature", 0)
    plain = suffice(*words, "--quiet")
    assert plain.stderr == ""
    record = json.loads(suffice(*words, "--json").stdout)
    assert record["prompt"] + record["text"] + "\n" == plain.stdout
    assert (record["tokens"], record["prompt_tokens"], record["slid"]) == (20, 5, False)
    assert record["prompt_tokens_per_second"] > 0 < record["tokens_per_second"]


def test_a_folder_that_is_none(suffice):
    assert suffice("generate", "nowhere", "--prompt", "a").exit_code == 2


def test_memories_by_name():
    assert parse_memory("dynamic", None) == Dynamic()
    assert parse_memory("static:7", None) == Static(7)
    assert parse_memory("rolling:7:2", "4") == Quantised(Rolling(7, sinks=2), bits=4)
    assert parse_memory("dynamic", "8:4") == Quantised(bits=8, value_bits=4)
    for wrong in ("dynamic:3", "static", "static:x", "rolling:1:2:3", "rolling:-1", "infinite"):
        with pytest.raises(ConfigError, match="--memory"):
            parse_memory(wrong, None)


class Bytes:
    """A tokenizer of bytes, which cuts letters."""

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize("text", ["plain", "naïve ü 漢字 😀😀!", "\U0001f600"])
@pytest.mark.parametrize("before", ["", "é", "long before 😀"])
def test_letters_are_shown_whole(text, before):
    pieces = []
    shown = TextStream(Bytes(), list(before.encode()), pieces.append)
    for token in text.encode():
        shown.add(token)
    shown.close()
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_no_letter_are_shown_in_the_end():
    pieces = []
    shown = TextStream(Bytes(), [], pieces.append)
    for token in (65, *[0x80] * 9, 66, 0xF0, 0x9F):
        shown.add(token)
    shown.close()
    assert "".join(pieces) == "A" + "\ufffd" * 9 + "B" + "\ufffd"


def test_what_a_prompt_goes_on_from(suffice, run):
    result = suffice("generate", "run", "--tokens", 3)  # letters, which nothing begins
    assert result.exit_code == 0
    lines = SimpleNamespace(begin=None, end=None, encode=lambda text: list(text.encode()))
    assert prompt_ids(lines, "") == [10]
    assert prompt_ids(Characters("ab"), "") == [0]
    marked = SimpleNamespace(begin=None, end=7, encode=list)
    assert prompt_ids(marked, "") == [7]
    assert prompt_ids(marked, [3]) == [3]
    marked.begin = 5
    assert prompt_ids(marked, "") == [5]
    assert prompt_ids(marked, [3]) == [5, 3]


def test_the_end_of_a_document_ends_the_text_and_is_not_shown(suffice, run, monkeypatch):
    lm, tokenizer = run
    ids = tokenizer.encode("to be")
    free = generate(lm, [ids], max_new_tokens=20).row(0)[len(ids) :]
    end = free[-1]
    monkeypatch.setattr(Characters, "end", end)
    words = ("--temperature", 0, "--tokens", 20)
    result = suffice("generate", "run", "--prompt", "to be", *words)
    assert result.exit_code == 0
    assert re.fullmatch(LAST, result.stderr), result.stderr
    assert int(result.stderr.split()[0]) == free.index(end) + 1
    assert result.stdout == "to be" + tokenizer.decode(free[: free.index(end)]) + "\n"


def test_the_backend_of_single_tokens_is_printed(suffice, run, request):
    words = ("generate", "run", "--prompt", "to be", "--tokens", 9, "--temperature", 0)
    texts = set()
    result = suffice(*words, "--impl", "torch")
    assert result.stderr.endswith("steps: torch (asked for)\n")
    texts.add(result.stdout)
    if library.available():
        for impl in ("auto", "native"):
            result = suffice(*words, "--impl", impl)
            assert result.stderr.endswith(f"steps: native ({library.instructions()})\n")
            texts.add(result.stdout)
    request.getfixturevalue("no_kernels")
    result = suffice(*words)
    assert result.stderr.endswith("steps: torch (they were not built)\n")
    texts.add(result.stdout)
    assert len(texts) == 1
    result = suffice(*words, "--impl", "native")
    assert result.exit_code == 2
    assert "impl='native' is not possible: they were not built; give" in result.message
