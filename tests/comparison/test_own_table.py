"""Comparisons on texts and classes that Python holds, or that other libraries wrote."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import suffice
from suffice.comparison.own_table import DATA, compare_data
from suffice.data import load
from suffice.data.table import read_files
from suffice.errors import ConfigError, DataError
from suffice.text import BPE
from suffice.train.recipes import recipe
from suffice.train.recipes.own_data import loadable, of_user

TEXTS = [f"word{n} {'good' if n % 2 else 'bad'} film" for n in range(120)]
LABELS = ["yes" if n % 2 else "no" for n in range(120)]
SIZES = {"length": 4, "d_model": 16, "depth": 1}
TINY = {**SIZES, "epochs": 5, "batch_size": 8, "learning_rate": 1e-2}


def compare(data, out, **options):
    return compare_data(
        data,
        ["standard", "efficient"],
        seeds=2,
        folds=0,
        settings=TINY,
        out=out,
        quiet=True,
        anyway=True,
        **options,
    )


def frame(tmp_path):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"id": range(120), "review": TEXTS, "stars": LABELS})


def pair_of_arrays(tmp_path):
    return np.array(TEXTS), np.array(LABELS, dtype=object)


def parquet(tmp_path):
    pytest.importorskip("pyarrow")
    frame(tmp_path).to_parquet(tmp_path / "a.parquet")
    return str(tmp_path / "a.parquet")


def saved_dataset(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    classes = datasets.ClassLabel(names=["no", "yes"])
    features = datasets.Features({"review": datasets.Value("string"), "stars": classes})
    numbers = [["no", "yes"].index(label) for label in LABELS]
    rows = datasets.Dataset.from_dict({"review": TEXTS, "stars": numbers}, features=features)
    rows.save_to_disk(str(tmp_path / "saved"))
    return str(tmp_path / "saved")


def test_data_in_any_form_are_the_same_rows(tmp_path):
    columns = "review,stars"
    plans = [
        recipe_of(frame(tmp_path), tmp_path, columns=columns),
        of_user(recipe("table"), parquet(tmp_path), columns=columns),
        of_user(recipe("table"), saved_dataset(tmp_path), columns=columns),
    ]
    first, *others = (load("table", **loadable(dict(plan.task_options))) for plan in plans)
    for other in others:
        for part in ("train", "validation", "test"):
            ours, theirs = getattr(first, part), getattr(other, part)
            assert torch.equal(ours.inputs, theirs.inputs)
            assert torch.equal(ours.labels, theirs.labels)


def test_every_argument_reaches_the_comparison_its_verdict_and_its_page(tmp_path):
    """Unlabelled rows, groups of unequal size, folds other than by default, another metric."""
    datasets = pytest.importorskip("datasets")
    unlabelled, groups = {5, 40, 77}, [int(n**0.5) for n in range(120)]
    features = datasets.Features(
        {
            "review": datasets.Value("string"),
            "stars": datasets.ClassLabel(names=["no", "yes"]),
            "buyer": datasets.Value("int64"),
        }
    )
    stars = [-1 if n in unlabelled else n % 2 for n in range(120)]
    columns = {"review": TEXTS, "stars": stars, "buyer": groups}
    data = datasets.Dataset.from_dict(columns, features=features)
    options = {"columns": "review,stars", "groups": "buyer", "quiet": True, "out": tmp_path}
    options["anyway"] = True
    with pytest.raises(DataError, match="3 of 120 rows have no stars .rows 6, 41, 78"):
        compare_data(data, ["standard", "efficient"], **options)
    done = compare_data(
        data,
        ["standard", "efficient"],
        **options,
        seeds=2,
        folds=4,
        margin=0.5,
        metric="log-loss",
        baseline="efficient",
        settings=TINY | {"epochs": 1},
        tokenizer="characters",
        drop_missing=True,
    )
    found = done.verdict
    assert (found.baseline, found.margin, found.metric.name) == ("efficient", 0.5, "log-loss")
    kept = [n for n in range(120) if n not in unlabelled]
    for mechanism in ("standard", "efficient"):
        folds = [done.results.rows[mechanism, 4, seed] for seed in range(2)]
        numbers = np.concatenate([fold.row for fold in folds])
        assert len(set(numbers.tolist())) == len(numbers)
        for fold in folds:
            assert fold.label.tolist() == [kept[row] % 2 for row in fold.row]
            buyers = [{groups[kept[row]] for row in one.row} for one in folds]
        assert not buyers[0] & buyers[1]
    losses = {
        m: [done.results.rows[m, 4, seed].loss.mean() for seed in range(2)]
        for m in ("standard", "efficient")
    }
    (comparison,) = found.comparisons
    expected = np.mean(losses["efficient"]) - np.mean(losses["standard"])
    assert comparison.difference.mean == pytest.approx(expected, rel=1e-5)
    assert set(suffice.load(tmp_path / "standard-h4-s0").tokenizer.words[3:]) <= set("".join(TEXTS))
    html = done._repr_html_()
    assert "<table>" in html
    assert "data:image/png;base64," in html


def test_chinese_texts_get_a_verdict(tmp_path, capsys):
    texts = [f"{chr(0x4E00 + n)}\u5f88" + "\u597d\u5dee"[n % 2] for n in range(120)]
    done = compare((texts, np.arange(120) % 2), tmp_path / "run")
    assert capsys.readouterr() == ("", "")
    assert done.results.folds is None
    best = suffice.load(tmp_path / "run").network.blocks[0].attention.spec
    assert best in [
        suffice.load(tmp_path / "run" / f"{name}-h4-s0").network.blocks[0].attention.spec
        for name in ("standard", "efficient")
    ]
    assert "without spaces" in " ".join(done.results.data.notes)
    assert len(done.verdict.comparisons) == 1
    assert (done.results.folds, {len(rows) for rows in done.results.rows.values()}) == (None, {12})
    model = suffice.load(tmp_path / "run" / "standard-h4-s0")
    assert set("\u5f88\u597d\u5dee") < set(model.tokenizer.words[3:]) < set("".join(texts))
    assert set(model.predict([texts[0]])[0].probabilities) == {"0", "1"}


def test_other_tokenizers_read_new_texts_as_those_of_the_training(tmp_path):
    compare((TEXTS, LABELS), tmp_path / "bpe", tokenizer="bpe")
    folder = tmp_path / "bpe" / "models" / "standard-h4-s0"
    model = suffice.load(folder)
    assert isinstance(model.tokenizer, BPE)
    assert model.predict([""])[0].probability > 0.0
    plan = recipe_of((TEXTS, LABELS), tmp_path, tokenizer=str(folder))
    assert plan.model.vocabulary_size == model.tokenizer.vocabulary_size
    options = {**loadable(dict(plan.task_options)), "length": TINY["length"]}
    split = load("table", **options).test
    tokens = model.prepare(TEXTS)["tokens"].tolist()
    assert all(row in tokens for row in split.inputs.tolist())


def recipe_of(data, tmp_path, columns="text,label", **options):
    with pytest.raises(ConfigError, match="seeds=0"):
        compare_data(data, ["standard"], seeds=0, out=tmp_path / "plan", columns=columns)
    options["columns"] = columns
    return of_user(recipe("table"), str(tmp_path / "plan" / DATA), **options)


def test_texts_of_one_long_word_are_read_by_character_and_it_is_said(tmp_path):
    texts = ["acgt" * 8 + "acgt"[n % 4] * n for n in range(60)]
    chosen = recipe_of((texts, LABELS[:60]), tmp_path)
    assert dict(chosen.task_options)["words"] == "characters"
    dataset = load("table", **dict(chosen.task_options))
    assert "characters are read" in " ".join(dataset.notes)
    with pytest.raises(ConfigError, match="syllables"):
        recipe_of((texts, LABELS[:60]), tmp_path, tokenizer="syllables")


def test_rows_in_memory_are_kept_with_the_comparison(tmp_path):
    def rows(data, name):
        with pytest.raises(ConfigError, match="seeds=0"):
            compare_data(data, ["standard"], seeds=0, out=tmp_path / name)
        return read_files(str(tmp_path / name / DATA)).pairs

    expected = list(zip(TEXTS, LABELS, strict=True))
    assert rows(pair_of_arrays(tmp_path), "arrays") == expected
    assert rows({"text": TEXTS, "label": LABELS}, "dictionary") == expected
    with pytest.raises(ConfigError, match="'50 points' .* '0.5 points'"):
        compare_data(None, ["standard"], margin=0.5, out=tmp_path)
    for other in ((TEXTS[1:], LABELS[1:]), (TEXTS, LABELS[1:] + LABELS[:1])):
        with pytest.raises(ConfigError, match="other data"):
            compare_data(other, ["standard"], out=tmp_path / "arrays")


def test_missing_values_of_pandas_and_numpy_are_counted(tmp_path):
    labels = [float("nan"), None, *LABELS[2:]]
    with pytest.raises(DataError, match="2 of 120 rows have no label .rows 1, 2"):
        compare((TEXTS, labels), tmp_path / "run")
    data = frame(tmp_path)
    data.loc[3, "review"] = None
    with pytest.raises(DataError, match="1 of 120 rows have no review .row 4"):
        compare(data, tmp_path / "other", columns="review,stars")


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ((TEXTS, LABELS[1:]), "119 classes"),
        ((TEXTS,), "tuple of 1"),
        ({"a": TEXTS, "b": LABELS}, "columns a, b"),
        ("mine.odt", "mine.odt"),
    ],
)
def test_data_of_another_form_are_refused(tmp_path, data, named):
    with pytest.raises((ConfigError, DataError), match=named):
        compare(data, tmp_path / "run")


def test_groups_of_columns_in_memory_reach_the_table(tmp_path):
    data = {"text": TEXTS, "label": LABELS, "buyer": [n // 3 for n in range(120)]}
    options = {"seeds": 0, "out": tmp_path / "plan"}
    with pytest.raises(ConfigError, match="seeds=0"):
        compare_data(data, ["standard"], **options, groups="buyer")
    plan = of_user(recipe("table"), str(tmp_path / "plan" / DATA), groups="buyer")
    dataset = load("table", **loadable(dict(plan.task_options)))
    assert "40 groups in 120 rows" in " ".join(dataset.notes)
    with pytest.raises(ConfigError, match="--stratify"):
        of_user(recipe("table"), str(tmp_path / "plan" / DATA), groups="buyer", stratify=True)
    with pytest.raises(DataError, match="'customer'"):
        compare_data(data, ["standard"], **options, groups="customer")
