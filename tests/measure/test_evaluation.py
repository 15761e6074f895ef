"""Tasks measured by hand on made-up items."""

from __future__ import annotations

import json
import lzma
import math
import statistics
import sys

import pytest
import torch
import torch.nn.functional as F

from suffice.errors import ConfigError, DataError
from suffice.measure import evaluation
from suffice.measure.evaluation import (
    continuation_losses,
    encode_apart,
    encode_joined,
    evaluate_task,
    perplexity,
)
from suffice.models import configuration
from suffice.text import Characters, Corpus, Documents

HELLASWAG = [
    {"ctx": "Q: a cat is", "label": 2, "endings": ["on it.", "red.", "a rat.", "outside."]},
    {
        "activity_label": "Q",
        "ctx": "a cat is [header] there. the",
        "ctx_a": "a cat is [header] there.",
        "ctx_b": "the",
        "label": "0",
        "endings": ["b [x]", "rat.", "a a.", "o"],
    },
    {"ctx": "Q: the rat", "label": 1, "endings": ["is.", "sat.", "has a cat.", "stood there."]},
]
HELLASWAG += [  # endings of very different lengths, so that the scorers disagree
    {"ctx": f"Q: the {a} is", "label": n % 3, "endings": [b, f"{b} {a} on the cat", "rat " * 5]}
    for n, (a, b) in enumerate(zip("abcdefgh", "hcgxyabd", strict=True))
]
TOKENIZER = Characters("\n :.?APQT[]abcdefghinorstuwxyz")


@pytest.fixture(scope="module")
def lm():
    torch.manual_seed(0)
    config, specs = configuration(
        "nanogpt_char_cpu", vocabulary_size=TOKENIZER.vocabulary_size, length=32
    )
    model = config.build(specs).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 4.0
    return model


def write(path, rows):
    text = "\n".join(map(json.dumps, rows)) + "\n\n"
    with lzma.open(path, "wt") as file:
        file.write(text)
    return str(path)


def loss(lm, context, asked):
    """The summed loss of `asked` after `context`, one row, no padding."""
    row = (context + asked)[-33:]
    with torch.no_grad():
        scores = lm(torch.tensor([row[:-1]]))[0].log_softmax(dim=-1)
    return -sum(float(scores[n - 1, row[n]]) for n in range(len(row) - len(asked), len(row)))


def encode(text):
    return TOKENIZER.encode(text)


def test_hellaswag_by_its_four_scorers(lm, tmp_path):
    path = write(tmp_path / "h.jsonl.xz", HELLASWAG)
    seen = []
    found = evaluate_task(
        lm, TOKENIZER, "hellaswag", data=path, step=lambda *numbers: seen.append(numbers)
    )
    plain = [row["ctx"].removeprefix("Q: ") for row in HELLASWAG]
    clean = ["Q: a cat is", "Q: a cat is there. The", *(row["ctx"] for row in HELLASWAG[2:])]
    right = [int(row["label"]) for row in HELLASWAG]
    hits = {name: [] for name in ("acc", "acc_norm", "sum", "average")}
    for n, row in enumerate(HELLASWAG):
        endings = row["endings"]
        tidy = ["b ", *endings[1:]] if "[x]" in endings[0] else [e.strip() for e in endings]
        bare = [loss(lm, encode(plain[n]), encode(f" {e}")) for e in endings]
        whole = [loss(lm, encode(clean[n]), encode(f" {e}")) for e in tidy]
        for name, values in (
            ("sum", bare),
            ("average", [v / (len(e) + 1) for v, e in zip(bare, endings, strict=True)]),
            ("acc", whole),
            ("acc_norm", [v / len(e) for v, e in zip(whole, tidy, strict=True)]),
        ):
            hits[name].append(float(values.index(min(values)) == right[n]))
    assert hits["acc"] != hits["acc_norm"]
    assert hits["sum"] != hits["average"]
    for score in found.scores:
        values = hits[score.name]
        assert score.value == pytest.approx(statistics.fmean(values))
        assert score.standard_error == pytest.approx(statistics.stdev(values) / math.sqrt(11))
        assert score.description
    assert [score.name for score in found.scores] == list(hits)
    assert (found.items, found.of, found.source) == (11, 11, path)
    assert seen[-1] == (72, 72)
    assert json.loads(json.dumps(found.to_json()))["task"] == "hellaswag"


def test_a_limit_takes_the_first_items(lm, tmp_path):
    path = write(tmp_path / "h.jsonl.xz", HELLASWAG)
    one = evaluate_task(lm, TOKENIZER, "hellaswag", data=path, limit=1)
    assert (one.items, one.of) == (1, 11)
    assert all(score.standard_error is None for score in one.scores)
    with pytest.raises(ConfigError, match="limit=0"):
        evaluate_task(lm, TOKENIZER, "hellaswag", data=path, limit=0)


def test_losses_of_ragged_pairs_are_those_of_each_alone(lm):
    texts = [
        ("a", " cat"),
        ("the rat is there", " a"),
        ("is", " on the cat is on"),
        ("a" * 40, " b"),
    ]
    pairs = [encode_joined(TOKENIZER, *pair) for pair in texts]
    for size in (1, 2, 4):
        found = continuation_losses(lm, pairs, batch_size=size)
        for one, (context, asked) in zip(found, pairs, strict=True):
            assert one.loss == pytest.approx(loss(lm, context, asked), rel=1e-4)
            assert one.tokens == len(asked)


def test_a_continuation_longer_than_the_model_keeps_its_end(lm):
    found = continuation_losses(lm, [(encode("a"), encode("b" * 50))])[0]
    assert found.tokens == 32
    assert found.loss == pytest.approx(loss(lm, encode("b"), encode("b" * 32)), rel=1e-4)


def test_joined_text_is_cut_after_the_context(monkeypatch):
    class Pairs:
        def encode(self, text):
            return [text[n : n + 2] for n in range(0, len(text), 2)]

    assert encode_joined(Pairs(), "abc", "de") == (["ab", "cd"], ["e"])
    assert encode_apart(Pairs(), "abc", "de") == (["ab", "c"], ["de"])
    with pytest.raises(DataError, match="'d'"):
        encode_joined(Pairs(), "abc", "d")


def test_piqa_in_both_forms_is_one(lm, tmp_path):
    rows = [
        {"query": "Question: eat?\n".replace("Question", "Q"), "choices": ["a b", "c"], "gold": 1},
    ]
    original = [{"goal": "eat?", "sol1": "a b", "sol2": "c", "label": 1}]
    two = [
        evaluation.read_items(_path(tmp_path, n, r), evaluation.parse_piqa)[0]
        for n, r in enumerate((rows, original))
    ]
    assert two[0].context == "Q: eat?\nAnswer:"
    assert two[1].context == "Question: eat?\nAnswer:"
    assert two[0].endings == two[1].endings == ("a b", "c")
    short = [{"query": "Q: a?\n", "choices": ["a b", "c"], "gold": 1}]
    letters = Characters("\n :?AQabcensrw")
    torch.manual_seed(1)
    config, specs = configuration(
        "nanogpt_char_cpu", vocabulary_size=letters.vocabulary_size, length=16
    )
    found = evaluate_task(
        config.build(specs).eval(), letters, "piqa", data=write(tmp_path / "p.jsonl.xz", short)
    )
    assert [score.name for score in found.scores] == ["acc", "acc_norm"]


def _path(folder, name, rows):
    path = folder / f"{name}.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_lambada_by_its_last_word(lm, tmp_path):
    rows = [{"text": "the cat is a"}, {"context": "the rat ", "continuation": " on"}]
    path = write(tmp_path / "l.jsonl.xz", rows)
    found = evaluate_task(lm, TOKENIZER, "lambada", data=path)
    pairs = [("the cat is", " a"), ("the rat", " on")]
    each = [loss(lm, encode(c), encode(w)) for c, w in pairs]
    acc, perplex = found.scores
    wanted = math.exp(statistics.fmean(each))
    assert perplex.value == pytest.approx(wanted, rel=1e-4)
    assert perplex.standard_error == pytest.approx(
        wanted * statistics.stdev(each) / math.sqrt(2), rel=1e-4
    )
    assert acc.value in (0.0, 0.5, 1.0)


@pytest.mark.parametrize(
    ("task", "line"),
    [
        ("hellaswag", '{"ctx": "a", "label": 4, "endings": ["a", "b"]}'),
        ("hellaswag", "[1]"),
        ("hellaswag", '{"ctx": "a"}'),
        ("lambada", '{"text": "word"}'),
        ("lambada", "{"),
        ("piqa", '{"goal": "a", "sol1": "a", "sol2": "", "label": 0}'),
    ],
)
def test_a_line_that_is_no_item_is_refused(lm, tmp_path, task, line):
    path = tmp_path / "items.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(DataError, match="line 1"):
        evaluate_task(lm, TOKENIZER, task, data=str(path))
    path.write_text("\n")
    with pytest.raises(DataError, match="holds no item"):
        evaluate_task(lm, TOKENIZER, task, data=str(path))


def test_absent_items_and_unknown_tasks_are_refused(lm, tmp_path, monkeypatch):
    monkeypatch.delenv("SUFFICE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError, match="piqa"):
        evaluate_task(lm, TOKENIZER, "piqa")
    place = tmp_path / "suffice" / evaluation.FILES["lambada"]
    place.parent.mkdir(parents=True)
    write(place, [{"text": "a cat"}])
    assert evaluate_task(lm, TOKENIZER, "lambada").items == 1
    with pytest.raises(ConfigError, match="hellswag"):
        evaluate_task(lm, TOKENIZER, "hellswag")


def test_perplexity_reads_every_token_once(lm, tmp_path):
    path = tmp_path / "text.txt"
    text = "the cat is on the rat. " * 40
    path.write_text(text)
    found = perplexity(lm, TOKENIZER, data=str(path))
    scores = {score.name: score for score in found.scores}
    ids = encode(text[: int(len(text) * 0.9)]) + encode(text[int(len(text) * 0.9) :])
    windows = [ids[n : n + 33] for n in range(0, len(ids) - 1, 32)]
    sums = []
    for row in windows:
        with torch.no_grad():
            logits = lm(torch.tensor([row[:-1]]))[0]
        sums.append(float(F.cross_entropy(logits, torch.tensor(row[1:]), reduction="sum")))
    wanted = sum(sums) / (len(ids) - 1)
    assert found.items == found.of == len(windows)
    assert scores["loss"].value == pytest.approx(wanted, rel=1e-5)
    means = [s / (len(row) - 1) for s, row in zip(sums, windows, strict=True)]
    error = statistics.stdev(means) / math.sqrt(len(means))
    assert scores["loss"].standard_error == pytest.approx(error, rel=1e-4)
    assert scores["perplexity"].value == pytest.approx(math.exp(wanted), rel=1e-5)
    assert scores["bits_per_byte"].value == pytest.approx(wanted / math.log(2), rel=1e-5)
    few = perplexity(lm, TOKENIZER, data=str(path), limit=18)
    assert (few.items, few.of) == (18, len(windows))
    assert few.scores[0].value == pytest.approx(sum(sums[:18]) / (18 * 32), rel=1e-5)
    assert perplexity(lm, TOKENIZER, data=str(path), limit=16).items == 16
    assert perplexity(lm, TOKENIZER, data=str(path), limit=1).scores[0].standard_error is None


def test_a_named_corpus_gives_its_test_or_validation_part(lm, monkeypatch):
    def made(name, **parts):
        read = {n: Documents(name=n, read=lambda t=t: [t]) for n, t in parts.items()}
        return Corpus(name=name, source="made up", **read)

    module = sys.modules["suffice.measure.evaluation"]
    parts = {"train": "a" * 99, "validation": "b" * 66, "test": "c" * 34}
    monkeypatch.setattr(module, "corpus", lambda _: made("wikitext2", **parts))
    assert perplexity(lm, TOKENIZER, data="wikitext2").of == 2
    del parts["test"]
    monkeypatch.setattr(module, "corpus", lambda _: made("stdlib", **parts))
    assert perplexity(lm, TOKENIZER, data="stdlib").of == 3
