"""`suffice search`: a plan that `suffice convert` takes, and what is said of it."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from suffice import AttentionSpec
from suffice.cli.search import search, sentences
from suffice.convert.search import Combination, Quantity, SearchResult, timing
from suffice.convert.search.result import folder_of
from suffice.convert.search.scoring import score
from suffice.errors import ConfigError
from suffice.models import folder
from suffice.patterns import Causal
from suffice.utils.statistics import summarise
from tests.cli.models import written

SPEC = AttentionSpec(d_model=16, num_heads=4, pattern=Causal())
WORDS = ("--options", "gqa:2; mqa;window:4+sinks:0", "--tokens", 500)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(timing, "ROUNDS", 3)
    monkeypatch.setattr(timing, "SECONDS", 1e-4)
    monkeypatch.setattr(import_module("suffice.convert.search.search"), "ROUNDS", 4)


@pytest.fixture
def run(tmp_path):
    return written(tmp_path, SPEC, depth=2)


def test_a_plan_is_found_that_convert_takes(suffice, run, tmp_path):
    read = ("--calibration", "text.txt")
    result = suffice("search", "run", "--budget", "state<=50%", *WORDS, *read, "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[2][0] == "blocks.0"
    (state,) = (row for row in rows if row[:2] == ["state", "kB"])
    assert state[-1] == "met"
    assert ["best", "of", "3", "uniform:"] in [row[:4] for row in rows]
    assert "a step behind 12 tokens is " in result.stdout
    assert result.stdout.endswith(
        "next: suffice convert run --to plan.json --calibration text.txt\n"
    )
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert len(plan["layers"]) == 2
    assert plan["facts"]["budget"] == "state<=50%"
    results = json.loads((tmp_path / "plan.search" / "results.json").read_text())
    assert results["words"] == plan["layers"]
    assert results["scored"] == results["pairs"] == 8
    assert (tmp_path / "plan.search" / "figure.png").read_bytes()[:4] == b"\x89PNG"
    made = suffice(
        "convert", "run", "--to", "plan.json", "--out", "made", "--quiet", "--tokens", 500
    )
    assert made.exit_code == 0
    assert folder.load("made")[0].specs != run.specs
    again = suffice("search", "run", "--budget", "state<=50%", *WORDS, "--quiet")
    assert (again.exit_code, "plan.search already holds a search" in again.message) == (2, True)
    more = suffice(
        "search", "run", "--budget", "divergence<=1e-12", *WORDS, "--quiet", "--resume", "--json"
    )
    assert json.loads(more.stdout)["words"] == ["keep", "keep"]
    assert (tmp_path / "plan.json").read_text().count("keep") == 2


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(suffice, run, tmp_path, monkeypatch):
    def stopped(judge, fits, options, work, *, late, step):
        score(judge, fits, options[:5], work, late=late, step=step)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(import_module("suffice.convert.search.search"), "score", stopped)
        result = suffice("search", "run", "--budget", "state<=50%", *WORDS)
    assert result.exit_code == 130
    assert "Finished work is kept. Resume with:" in result.stderr
    assert (
        result.stderr.rstrip().endswith("--quiet --resume")
        or "--out plan.json --resume" in result.stderr
    )
    kept = {path.name for path in (tmp_path / "plan.search" / "scores").iterdir()}
    assert len(kept) == 3
    assert not (tmp_path / "plan.json").exists()
    on = suffice("search", "run", "--budget", "state<=50%", *WORDS, "--quiet", "--resume")
    assert on.exit_code == 0
    assert (tmp_path / "plan.json").exists()


WRONG = {
    "impossible": (["--budget", "state<=1%"], "no choice meets state<=1%; the nearest that can be"),
    "out": (["--budget", "state<=50%", "--out", "plan"], "a plan is a file that ends in .json"),
    "long": (["--budget", "state<=50%", "--length", "13"], "the model reads at most 12 tokens."),
    "short": (["--budget", "state<=50%", "--calibration", "short.txt"], "less than "),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_input_is_refused_in_one_sentence(case, suffice, run, tmp_path):
    (tmp_path / "short.txt").write_text("to be or not")
    before = {path.name for path in tmp_path.iterdir()}
    words, said = WRONG[case]
    result = suffice("search", "run", *words, "--quiet")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.message
    assert {path.name for path in tmp_path.iterdir()} - before <= {"cache"}


def test_a_model_of_transformers_needs_a_tokenizer_and_text(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 8}
    llama = transformers.LlamaConfig(**sizes, num_attention_heads=2, vocab_size=9)
    transformers.LlamaForCausalLM(llama).save_pretrained(tmp_path / "llama")
    with pytest.raises(ConfigError, match="this llama model has no tokenizer"):
        search(tmp_path / "llama", budget="state<=50%", quiet=True)
    vit = transformers.ViTConfig(**sizes, num_attention_heads=1, image_size=8, patch_size=4)
    transformers.ViTForImageClassification(vit).save_pretrained(tmp_path / "vit")
    with pytest.raises(ConfigError, match="a vit model"):
        search(tmp_path / "vit", budget="state<=50%", quiet=True)


def mix(kind, *values, words=("gqa:1", "keep")):
    return Combination(
        kind=kind,
        words=words,
        predicted=0.1,
        divergence=summarise(values),
        loss=summarise([0.1, 0.2, 0.3]),
        state=100.0,
        rows=values,
    )


def found(**fields):
    latency = {"name": "latency", "source": 1e-3, "bound": None, "predicted": 1e-3}
    own = fields.pop("latency", {"measured": 1e-3, "low": 0.9e-3, "high": 1.1e-3})
    given = {
        "budget": "state<=50%",
        "words": ("gqa:1", "keep"),
        "layers": (),
        "length": 12,
        "way": "native",
        "source_way": "native",
        "quantities": (Quantity(**latency, **own),),
        "mixes": (mix("plan", 0.1, 0.2, 0.3),),
        "additive": True,
        "weighed": 0,
        "moved": False,
        "scored": 8,
        "pairs": 8,
        "held": (2000, 1000),
        "certificate": None,
        "scores": (),
    }
    return SearchResult(**given | fields)


def said(**fields):
    return " ".join(sentences(found(**fields)))


def test_no_speed_is_claimed_inside_the_noise():
    assert "is as fast as the source within the noise (steps: native); KV cache" in said()
    fast = said(latency={"measured": 0.5e-3, "low": 0.4e-3, "high": 0.6e-3})
    assert "is 2.00x as fast as the source" in fast
    slow = said(latency={"measured": 2e-3, "low": 1.5e-3, "high": 2.6e-3}, way="torch")
    assert "is 2.00x slower than the source (steps: native, then torch)" in slow


def test_no_rival_is_beaten_inside_the_noise():
    plan = mix("plan", 0.1, 0.2, 0.3)
    assert "no one option for all layers meets the budget" in said()
    equal = mix("uniform", 0.1, 0.2, 0.3, words=("gqa:1", "keep"))
    assert "the plan is the best uniform choice" in said(mixes=(plan, equal))
    others = {
        "nearer to the source than": (0.201, 0.3, 0.401),
        "farther from the source than": (0.001, 0.1, 0.201),
        "not distinguishable from": (0.3, 0.1, 0.3),
    }
    for word, values in others.items():
        told = said(mixes=(plan, mix("uniform", *values, words=("mqa", "mqa"))))
        assert f"the plan is {word} the best" in told


def test_what_else_is_said():
    assert "every layer stays as it is" in said(additive=None)
    told = said(additive=False, weighed=5, moved=True)
    assert "so 5 choices near it were measured; one of them is the plan" in told
    assert "none was better" in said(additive=False, weighed=5)
    assert "3 of 8 pairs of a layer and an option were scored in time" in said(scored=3)
    assert folder_of(Path("a/b.json")) == Path("a/b.search")
