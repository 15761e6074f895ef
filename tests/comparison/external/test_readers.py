"""Readers of the files of other programs, on files that these programs wrote."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import suffice
from suffice.comparison import judge, sentence
from suffice.comparison.external import readers
from suffice.comparison.external.readers import kind_of
from suffice.comparison.results import write_results
from suffice.errors import ConfigError, DataError
from tests.comparison.synthetic import from_accuracies

DATA = Path(__file__).parent / "data"
WIDE, NARROW = DATA / "trainer" / "wide", DATA / "trainer" / "narrow"


def only(judged):
    (pair,) = judged.judged
    return pair[1].comparisons[0]


def test_trainings_of_a_trainer_are_paired_by_the_seeds_in_their_folders():
    judged = suffice.verdict([WIDE, NARROW])
    results, _ = judged.judged[0]
    assert (results.metric, results.external.pairing) == ("accuracy", "seeds")
    last = [
        json.loads(path.read_text())["log_history"][-1]["eval_accuracy"]
        for path in sorted(NARROW.rglob("*.json"))
    ]
    assert only(judged).quality.mean == pytest.approx(np.mean(last))


def test_a_trainer_without_evaluations_is_refused(tmp_path):
    (tmp_path / "trainer_state.json").write_text('{"log_history": [{"loss": 1.0}]}')
    with pytest.raises(DataError, match="eval_strategy"):
        suffice.verdict([WIDE, tmp_path])


def test_scores_of_folds_are_paired_by_fold(tmp_path):
    """As scikit-learn's `cross_val_score` returns them: one number for each fold."""
    a, b = np.random.default_rng(0).uniform(0.8, 0.9, (2, 5))
    rows = [f"{name},{n},{x}" for name, of in (("a", a), ("b", b)) for n, x in enumerate(of)]
    (tmp_path / "scores.csv").write_text("\n".join(["model,fold,test_score", *rows]))
    comparison = only(suffice.verdict(tmp_path / "scores.csv", margin=0.05))
    # training rows of folds overlap: (1 + 2 q) of the variance, q = 1 / (folds - 1)
    error = np.sqrt((b - a).var(ddof=1) / 5 * 1.5)
    assert float(comparison.estimate.standard_error) == pytest.approx(error)


def test_an_own_comparison_has_the_words_of_compare(tmp_path):
    near = [0.968, 0.970, 0.967, 0.968, 0.967]
    results = from_accuracies({"standard": [0.97, 0.971, 0.969, 0.97, 0.97], "efficient": near})
    write_results(tmp_path / "results.json", results)
    judged = suffice.verdict(tmp_path)
    assert judged.sentence == sentence(judge(results), results)
    assert judged.code == 0
    with pytest.raises(ConfigError, match="alone"):
        suffice.verdict([tmp_path, tmp_path])
    assert suffice.verdict(tmp_path, margin=0.001).code == 10
    for option in ({"chance": 0.5}, {"paired": True}, {"better": "higher"}, {"null": True}):
        with pytest.raises(ConfigError, match=next(iter(option))):
            suffice.verdict(tmp_path, **option)
    with pytest.raises(ConfigError, match="one metric"):
        suffice.verdict(tmp_path, metrics=["accuracy", "log-loss"])
    with pytest.raises(ConfigError, match="efficent"):
        suffice.verdict(tmp_path, baseline="efficent")


def test_answers_without_labels_are_refused_and_absent_answers_are_wrong(tmp_path):
    lines = ["model,seed,row,answer,label"]
    lines += [f"{m},{s},{r},{r % 2},{r % 2}" for m in "ab" for s in range(3) for r in range(30)]
    lines[1] = "a,0,0,,0"
    (tmp_path / "t.csv").write_text("\n".join(lines))
    judged = suffice.verdict(tmp_path / "t.csv").judged[0][0]
    assert judged.select("a", 0)[0].test_accuracy == pytest.approx(29 / 30)
    lines[1] = "a,0,0,,"
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match="no label"):
        suffice.verdict(tmp_path / "t.csv")


def test_seeds_and_folds_in_one_table_are_told_apart_by_one(tmp_path):
    lines = ["model,seed,fold,row,score"]
    lines += [
        f"{m},{s},{r % 3},q{r},{(r + s + len(m)) % 2}"
        for m in ("a", "bb")
        for s in range(3)
        for r in range(30)
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match="--columns seed=seed"):
        suffice.verdict(tmp_path / "t.csv")
    assert suffice.verdict(tmp_path / "t.csv", columns={"seed": "seed"}).judged


def test_data_frames_and_parquet_are_read_as_tables_are(tmp_path):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    tables = {}
    for name in ("a", "b"):
        rows = [(s, f"q{r}", float(rng.random() < 0.7)) for s in range(4) for r in range(60)]
        tables[name] = pandas.DataFrame(rows, columns=["seed", "row", "score"])
        tables[name].to_csv(tmp_path / f"{name}.csv", index=False)
    of_files = suffice.verdict([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert suffice.verdict(tables).sentence == of_files.sentence
    pytest.importorskip("pyarrow")
    for name, table in tables.items():
        table.to_parquet(tmp_path / f"{name}.parquet")
    of_parquet = suffice.verdict([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    assert of_parquet.sentence == of_files.sentence


@pytest.mark.parametrize("lost", ["seed", "row", "score"])
def test_a_line_that_lacks_a_column_is_refused_with_its_number(tmp_path, lost):
    rows = [{"seed": s, "row": f"q{r}", "score": (s + r) % 2} for s in range(3) for r in range(9)]
    del rows[11][lost]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match=f"row 12.*('{lost}'|None)"):
        suffice.verdict({"a": tmp_path / "t.jsonl", "b": tmp_path / "t.jsonl"})


def log(scores: dict[str, list[object]], status: str = "success") -> dict:
    """A log of inspect in its JSON format, as version 0.3 writes it, without what is not read."""
    samples = [
        {"id": name, "epoch": epoch, "scores": {"match": {"value": value}}}
        for name, values in scores.items()
        for epoch, value in enumerate(values, 1)
    ]
    return {"version": 2, "status": status, "eval": {"task": "numbers"}, "samples": samples}


def test_logs_of_inspect_are_read_in_both_formats_and_epochs_are_averaged(tmp_path):
    letters = {f"q{row}": ["C", "I" if row % 4 else "C"] for row in range(40)}
    content = log(letters)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "log.json").write_text(json.dumps(content))
    (tmp_path / "new").mkdir()
    letters["q1"], letters["q2"] = ["I", "I"], ["C", "C"]
    changed = log(letters)
    with zipfile.ZipFile(tmp_path / "new" / "log.eval", "w") as archive:
        samples = changed.pop("samples")
        archive.writestr("header.json", json.dumps(changed))
        for sample in samples:
            name = f"samples/{sample['id']}_epoch_{sample['epoch']}.json"
            archive.writestr(name, json.dumps(sample))
    judged = suffice.verdict([tmp_path / "old", tmp_path / "new"], margin=0.2)
    (results, verdict), *_ = judged.judged
    assert verdict.qualities[0].mean == pytest.approx((10 + 30 * 0.5) / 40)
    assert only(judged).difference.mean == pytest.approx(0.0)
    assert (results.task, only(judged).rows, judged.code) == ("numbers", 40, 0)
    for status in ("error", "cancelled", "started"):
        (tmp_path / "old" / "log.json").write_text(json.dumps(log(letters, status=status)))
        with pytest.raises(DataError, match=f"'{status}'"):
            suffice.verdict([tmp_path / "old", tmp_path / "new"])


def test_folders_of_nothing_known_and_of_several_kinds_are_refused(tmp_path):
    with pytest.raises(DataError, match="no results"):
        kind_of(tmp_path)
    (tmp_path / "trainer_state.json").write_text('{"log_history": []}')
    (tmp_path / "log.json").write_text(json.dumps(log({})))
    with pytest.raises(DataError, match="several kinds"):
        kind_of(tmp_path)


def test_samples_of_lm_evaluation_harness_are_paired_by_document_and_averaged_over_tasks():
    folders = [DATA / "lm_eval" / name for name in ("two_layers", "one_layer")]
    judged = suffice.verdict(folders, margin=0.3)
    assert [results.task for results, _ in judged.judged] == ["greater", "sums"]
    for results, verdict in judged.judged:
        comparison = verdict.comparisons[0]
        assert (results.metric, comparison.rows, comparison.of_rows_alone) == ("acc", 40, True)
        (written,) = folders[1].glob("results_*.json")
        told = json.loads(written.read_text())["results"][results.task]["acc,none"]
        assert comparison.quality.mean == pytest.approx(told)
    (results, verdict), *_ = judged.over_tasks
    each = [v.comparisons[0].difference.mean for _, v in judged.judged]
    assert verdict.comparisons[0].difference.mean == pytest.approx(np.mean(each))
    assert verdict.comparisons[0].rows == 80
    assert "nothing can be said about other trainings" in judged.sentence


def test_samples_that_contradict_their_results_and_rows_that_are_all_equal_are_told(tmp_path):
    copies = [tmp_path / name for name in ("two_layers", "one_layer")]
    for copy in copies:
        shutil.copytree(DATA / "lm_eval" / copy.name, copy)
    assert "is wrong" not in str(suffice.verdict(copies, margin=0.3))
    (written,) = copies[1].glob("results_*.json")
    content = json.loads(written.read_text())
    content["results"]["sums"]["acc,none"] += 0.2
    written.write_text(json.dumps(content))
    (samples,) = copies[0].glob("samples_greater_*.jsonl")
    samples.write_text(samples.read_text().replace('"acc": 1.0', '"acc": 0.0'))
    judged = suffice.verdict(copies, margin=0.3).judged
    text = " ".join(note for results, _ in judged for note in results.external.notes)
    means = [content["results"]["sums"]["acc,none"] - less for less in (0.0, 0.2)]
    told = "acc {:.4g} for sums, and the mean of its samples, which is judged, is {:.4g}"
    assert told.format(*means) in text
    assert "Every acc of two_layers is 0, in all rows" in text


def test_results_without_samples_ask_for_them(tmp_path):
    (written,) = (DATA / "lm_eval" / "one_layer").glob("results_*.json")
    (tmp_path / written.name).write_text(written.read_text())
    with pytest.raises(DataError, match="--log_samples"):
        suffice.verdict([DATA / "lm_eval" / "two_layers", tmp_path])


def test_samples_that_list_no_metrics_are_refused_with_the_reason(tmp_path):
    sample = {"doc_id": 0, "target": "1", "resps": [], "acc": 1.0}
    (tmp_path / "samples_arc_2024-01-01T00-00-00.0.jsonl").write_text(json.dumps(sample))
    with pytest.raises(DataError, match="metrics"):
        suffice.verdict([DATA / "lm_eval" / "two_layers", tmp_path])


def test_a_folder_of_too_many_files_is_refused_before_they_are_listed(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    for number in range(3):
        (tmp_path / f"deep/{number}.txt").touch()
    monkeypatch.setattr(readers, "MAX_FILES", 4)
    with pytest.raises(DataError, match="no results"):
        kind_of(tmp_path / "deep")
    with pytest.raises(DataError, match="more than 4 files"):
        kind_of(tmp_path)
