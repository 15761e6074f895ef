"""`suffice verdict` as a shell sees it: files in, sentence and exit code out."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from suffice.cli.verdict import KINDS
from suffice.comparison.external import readers
from suffice.comparison.results import write_results
from tests.cli.documented import check
from tests.comparison.synthetic import from_accuracies


def test_help_names_every_kind():
    assert tuple(readers.KINDS) == KINDS


def table(name: str, accuracy: float, *, seeds: int = 5, rows: int = 400) -> str:
    """A table of right and wrong answers; equal accuracies agree on three rows in four."""
    shared = np.random.default_rng(0).random(rows)
    own = np.random.default_rng(len(name) + ord(name[0])).random((seeds, rows))
    lines = ["seed,row,score"]
    for seed, row in product(range(seeds), range(rows)):
        luck = shared[row] if row % 4 else own[seed, row]
        lines.append(f"{seed},q{row},{int(luck < accuracy)}")
    Path(f"{name}.csv").write_text("\n".join(lines))
    return f"{name}.csv"


def test_exit_codes_are_those_of_a_gate(suffice):
    base, same, worse = table("a", 0.8), table("b", 0.8), table("c", 0.6)
    assert suffice("verdict", base, same, "--margin", 5).exit_code == 0
    assert suffice("verdict", base, worse).exit_code == 10
    assert suffice("verdict", base, same, "--margin", 0).exit_code == 11
    assert suffice("verdict", base, same, "--chance", 0.9).exit_code == 12
    for words in ((base, "absent.csv"), (base, same, "--nonsense"), (base, "")):
        assert suffice("verdict", *words).exit_code == 2


def test_names_baseline_and_json(suffice):
    base, same = table("a", 0.8), table("b", 0.8)
    result = suffice("verdict", f"old={base}", f"new={same}", "--baseline", "new", "--json")
    record = json.loads(result.stdout)
    assert record["exit_code"] == result.exit_code
    check(record, "verdict")
    assert record["words"] == {"old": record["outcome"]}
    (comparison,) = record["comparisons"]
    assert (comparison["baseline"], comparison["pairing"]) == ("new", "seeds and rows")


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ("seed,row,score\n0,a,1\n0,a,0", "'a'"),
        ("seed,row,score\n0,a,nan", "nan"),
        ("seed,row,score\n0,a,", "''"),
        ("seed,row,score\n0,zz,1", "share no row"),
        ("seed,score\n0,1\n0,0", "--columns row"),
        ("seed,x,y\n0,1,2", "--columns score"),
        ("seed,row,answer\n0,q1,x", "--columns label"),
        ("seed,row,score", "no rows"),
        ("", "b.csv"),
    ],
)
def test_bad_tables_are_one_sentence_and_write_nothing(suffice, tmp_path, lines, value):
    base = table("a", 0.8)
    Path("b.csv").write_text(lines)
    before = sorted(tmp_path.rglob("*"))
    result = suffice("verdict", base, "b.csv", "--out", "page")
    assert result.exit_code == 2
    assert value in result.message
    assert result.message.startswith("error: ")
    assert sorted(tmp_path.rglob("*")) == before


def test_mixed_kinds_are_refused(suffice):
    Path("column.txt").write_text("0.5\n0.6\n0.7\n")
    result = suffice("verdict", table("a", 0.8), "column.txt")
    assert (result.exit_code, "mixed kinds" in result.message) == (2, True)


def test_several_metrics_and_tasks_have_a_line_each(suffice):
    rng = np.random.default_rng(3)
    for name in ("a", "b"):
        lines = ["task,seed,row,acc,loss"]
        for task, seed, row in product(("one", "two"), range(4), range(50)):
            lines.append(f"{task},{seed},{row},{rng.random():.3f},{1 + rng.random():.3f}")
        Path(f"{name}.csv").write_text("\n".join(lines))
    words = ("verdict", "a.csv", "b.csv", "--metric", "acc,loss", "--margin", "acc=20,loss=0.3")
    result, shown = suffice(*words, "--json"), suffice(*words)
    record = json.loads(result.stdout)
    check(record, "verdict")
    assert (len(record["comparisons"]), len(record["over_tasks"])) == (4, 2)
    assert result.exit_code == shown.exit_code == 0
    assert "says nothing of other tasks" in " ".join(shown.stdout.split())


def test_a_page_with_the_picture_is_written_where_asked(suffice):
    result = suffice("verdict", table("a", 0.8), table("b", 0.8), "--out", "page")
    assert Path("page/differences.png").exists()
    assert "against a" in Path("page/report.html").read_text()
    assert "page/report.html" in result.stdout


def test_a_margin_of_an_own_comparison_is_in_points(tmp_path, suffice):
    accuracies = {"standard": [0.9, 0.901, 0.899], "efficient": [0.88, 0.881, 0.879]}
    write_results(tmp_path / "results.json", from_accuracies(accuracies))
    codes = [suffice("verdict", tmp_path, "--margin", m).exit_code for m in ("1", "3", "3%")]
    assert codes == [10, 0, 0]
