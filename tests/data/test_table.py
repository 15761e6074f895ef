"""A table of the user's own: which rows, columns and classes are read."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from pathlib import Path

import pytest

from suffice.data import load
from suffice.data.files import digest
from suffice.data.rows import read_rows
from suffice.data.survey import survey
from suffice.data.table import read_files
from suffice.errors import ConfigError, DataError

TEXTS = [f"word{number} {'good' if number % 2 else 'bad'}" for number in range(60)]
RICH = [f"ten{n // 10} unit{n % 10} {'good' if n % 2 else 'bad'}" for n in range(60)]
"""Texts whose words are all known: most of them are in the training rows."""
LABELS = ["yes" if number % 2 else "no" for number in range(60)]


def csv_of(path, rows, header="text,label"):
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
    return str(path)


@pytest.fixture
def table(tmp_path):
    return csv_of(tmp_path / "mine.csv", rows=list(zip(TEXTS, LABELS, strict=True)))


def classes(path):
    return list(read_files(path).classes)


def read(dataset):
    """Return what each part holds: last words and class."""
    names = dataset.vocabulary
    return {
        part: [
            (" ".join(names[id_] for id_ in row[row > 1]), int(label))
            for row, label in zip(split.inputs, split.labels, strict=True)
        ]
        for part, split in (
            ("train", dataset.train),
            ("validation", dataset.validation),
            ("test", dataset.test),
        )
    }


def test_every_part_has_its_share_of_each_class(table):
    dataset = load("table", path=table, length=4)
    assert (dataset.num_classes, dataset.title) == (2, "mine.csv, 2 classes, last 4 words")
    assert dataset.class_names == ("no", "yes")
    result = read(dataset)
    counts = {
        part: [[n for _, n in rows].count(c) for c in (0, 1)] for part, rows in result.items()
    }
    assert counts == {"train": [24, 24], "validation": [3, 3], "test": [3, 3]}
    assert dataset.train.valid.sum(dim=1).unique().tolist() == [3]
    assert dataset.scores == ("balanced_accuracy",)


def test_further_rows_move_no_other_without_strata(tmp_path):
    rows = list(zip(RICH, LABELS, strict=True))
    short = csv_of(tmp_path / "few.csv", rows=rows)
    more = [*rows, *((f"new {n}", "no") for n in range(40))]
    longer = csv_of(tmp_path / "more.csv", rows=more)
    few, many = (load("table", path=path, stratify=False, test=0.3) for path in (short, longer))
    place = {text: part for part, rows in read(few).items() for text, _ in rows}
    for text, part in place.items():
        at = int(hashlib.sha1(text.encode()).hexdigest(), 16) / 2**160
        assert part == ("test" if at < 0.3 else "validation" if at < 0.4 else "train")
    again = {text: part for part, rows in read(many).items() for text, _ in rows}
    assert set(place) == set(RICH)
    assert all(again[text] == part for text, part in place.items())


def test_equal_texts_are_in_one_part(tmp_path):
    rows = [(text, label) for text, label in zip(RICH, LABELS, strict=True) for _ in range(3)]
    facts = survey(load("table", path=csv_of(tmp_path / "x.csv", rows=rows)))
    assert facts.repeated == {"train": 96, "validation": 12, "test": 12}
    assert facts.overlap == {"validation": 0, "test": 0}


def test_files_of_their_own_are_the_test_and_the_validation(tmp_path, table):
    test = csv_of(tmp_path / "t.csv", rows=[("quite good", "yes"), (TEXTS[0], "no")])
    dataset = load("table", path=table, test=test, validation=0.2)
    assert dataset.test.labels.tolist() == [1, 0]
    assert len(dataset.validation) == 12
    folded = load("table", path=table, validation=test, folds=3, fold=1, length=4)
    assert folded.validation.labels.tolist() == [1, 0]
    assert len(folded.train) + len(folded.test) == 59
    lacking = csv_of(tmp_path / "l.csv", rows=[("quite good", "yes"), ("bad", ""), ("", "no")])
    notes = " ".join(load("table", path=table, test=lacking, drop_missing=True).notes)
    assert f"1 of 3 rows have no label (row 2) of {lacking}" in notes
    assert f"1 of 3 rows have no text (row 3) of {lacking}" in notes
    strange = csv_of(tmp_path / "s.csv", rows=[("quite good", "maybe")])
    with pytest.raises(DataError, match="'maybe'"):
        load("table", path=table, test=strange)
    with pytest.raises(ConfigError, match="validation=1"):
        load("table", path=table, validation=1.0)
    with pytest.raises(ConfigError, match="take 110% of the rows"):
        load("table", path=table, validation=0.5, test="0.6")


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters_are_read_off_the_first_line(tmp_path, delimiter):
    lines = [f'"a text; of, many|kinds\t{n}"{delimiter}{n % 2}' for n in range(40)]
    path = tmp_path / "x.csv"
    path.write_text("\n".join([f"text{delimiter}label", *lines]))
    assert classes(str(path)) == ["0", "1"]


def test_names_of_columns_may_hold_commas(tmp_path):
    rows = list(zip(TEXTS, LABELS, strict=True))
    path = csv_of(tmp_path / "x.csv", rows=rows, header='"review, in full",stars')
    for columns in ("review, in full,stars", '"review, in full",stars'):
        assert read_files(path, columns).columns == ("review, in full", "stars")
    with pytest.raises(DataError, match='by --columns, such as "review, in full,stars"'):
        load("table", path=path)


def test_quantities_and_lists_of_labels_are_refused(tmp_path):
    def refused(labels, match):
        path = csv_of(tmp_path / "x.csv", rows=list(zip(TEXTS, labels, strict=True)))
        with pytest.raises(DataError, match=match):
            load("table", path=path)

    refused([f"{n / 7:.3f}" for n in range(60)], "60 different numbers .*regression")
    refused([str(n // 2 * 10) for n in range(60)], "30 different numbers .*regression")
    refused([("a;b", "b", "a;b;c", "c")[n % 4] for n in range(60)], r"several labels .*multi-label")
    objects = [json.dumps({"text": text, "label": ["a", "b"]}) for text in TEXTS]
    (tmp_path / "x.jsonl").write_text("\n".join(objects))
    with pytest.raises(DataError, match="several labels of a row, such as .*multi-label"):
        load("table", path=str(tmp_path / "x.jsonl"))
    halves = csv_of(tmp_path / "h.csv", rows=[(t, f"{n % 9 / 2}") for n, t in enumerate(TEXTS)])
    assert len(classes(halves)) == 9  # half stars are classes
    named = csv_of(
        tmp_path / "n.csv", rows=[(t, ("Books; Music", "Toys")[n % 2]) for n, t in enumerate(TEXTS)]
    )
    assert classes(named) == ["Books; Music", "Toys"]


def test_all_forms_give_the_same(tmp_path, table):
    same = read(load("table", path=table))
    rows = list(zip(TEXTS, LABELS, strict=True))
    (tmp_path / "a.tsv").write_text(
        "n\tstars\treview\n" + "".join(f"1\t{label}\t{text}\n" for text, label in rows)
    )
    objects = [json.dumps({"review": text, "stars": label, "n": 1}) for text, label in rows]
    (tmp_path / "a.jsonl").write_text("\n\n".join(objects))
    (tmp_path / "a.csv.gz").write_bytes(
        gzip.compress(
            b"\xef\xbb\xbf"
            + b"review,stars\r\n"
            + b"".join(f'"{text}",{label}\r\n'.encode() for text, label in rows)
        )
    )
    for name in ("a.tsv", "a.jsonl", "a.csv.gz"):
        assert read(load("table", path=str(tmp_path / name), columns="review, stars")) == same


def test_classes_are_in_order(tmp_path):
    def of(labels):
        rows = [(text, labels[n % len(labels)]) for n, text in enumerate(TEXTS)]
        return classes(csv_of(tmp_path / "x.csv", rows=rows))

    assert of(["10", "9", "-1.5"]) == ["-1.5", "9", "10"]
    assert of(["10", "9", "b"]) == ["10", "9", "b"]
    many = [json.dumps({"text": t, "label": bool(n % 2)}) for n, t in enumerate(TEXTS)]
    (tmp_path / "x.jsonl").write_text("\n".join(many))
    assert classes(str(tmp_path / "x.jsonl")) == ["false", "true"]


@pytest.mark.parametrize("missing", [None, float("nan"), "", "  "])
def test_rows_without_a_text_are_named_and_may_be_left_out(tmp_path, missing):
    pairs = [(missing, "other"), *zip(TEXTS, LABELS, strict=True), *[(missing, "more")] * 6]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps({"text": t, "label": n}) for t, n in pairs))
    with pytest.raises(DataError, match=r"7 of 67 rows .*text .rows 1, 62, 63, 64, 65, \.\.\."):
        read_files(str(path))
    files = read_files(str(path), drop_missing=True)
    assert files.classes == ("no", "yes")
    assert "7 of 67" in files.notes[0]


def test_half_a_pair_of_surrogates_is_a_character(tmp_path):
    rows = [{"text": f"{t} \ud83d", "label": n} for t, n in zip(TEXTS, LABELS, strict=True)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dataset = load("table", path=str(tmp_path / "x.jsonl"))
    assert len(dataset.train) + len(dataset.validation) + len(dataset.test) == len(TEXTS)


def test_rows_limits_the_training_rows(table):
    full, few = load("table", path=table), load("table", path=table, rows=20)
    assert (len(few.train), len(few.test)) == (20, len(full.test))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "id,review\n1,good\n", "has no column 'text' or 'label', only id, review; name"),
        ("a.csv", "", "has no column 'text' or 'label', nor any other; name that"),
        (
            "a.csv",
            ",".join("abcdefghijklmn") + "\n",
            "only a, b, c, d, e, f, g, h, i, j, k, l, ...;",
        ),
        ("a.csv", "text,label\ngood,\n", "1 of 1 rows have no label .row 1."),
        ("a.csv", 'text,label\n"' + "a" * 140_000 + '",b\n', "cannot be read .field larger than"),
        (
            "a.csv",
            'text,label\n"a b,1\nc d,0\n"e f,1\ng,0\n',
            "line 4, cannot .*its own quotes doubled",
        ),
        ("a.csv", 'text,label\na,1\n"b,0\n', "unexpected end of data.; a text with quotes, sep"),
        ("a.tsv", "text\tlabel\ttext\na\t1\tb\n", "several columns 'text'; name each but once"),
        ("a.jsonl", '{"text": "a", "label": NaN}', "1 of 1 rows have no label"),
        ("a.jsonl", '{"text": "a"', "line 1, is not JSON"),
        ("a.jsonl", "[1]", "line 1, is not a JSON object"),
        ("a.jsonl", '{"text": "a"}', "has no column 'label', only text;"),
        ("a.csv", "text,label\na,1\nb,2\n", "'label' holds 2 different values in 2 rows"),
        ("a.csv", "text,label\na,1\nb,1\n", "'label' holds 1 different values in 2 rows"),
        ("a.csv", "text,label\n" + "good,1\nfine,0\n" * 5, "holds no row for validation; give a f"),
        (
            "a.jsonl",
            '{"text": "a", "label": 1}\n{"text": "a"}',
            "1 of 2 rows have no label .row 2.",
        ),
        ("a.csv", "text ,label\na,1\n", "has no column 'text', only 'text ', label;"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=said):
        load("table", path=str(tmp_path / name))


@pytest.mark.parametrize("encoding", ["latin1", "cp1252", "utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".jsonl"])
def test_a_table_in_another_encoding_is_read_when_it_is_named(tmp_path, encoding, ending):
    path, texts = str(tmp_path / f"a{ending}"), ["na\u00efve", "t\u00eate-\u00e0\ntwo", "\u00fc"]
    if ending == ".jsonl":
        rows = [json.dumps({"text": t, "label": 1}, ensure_ascii=False) for t in texts]
    else:
        rows = ["text,label", *(f'"{t}",1' for t in texts)]
    content = "\r\n".join(rows).encode(encoding)
    (tmp_path / f"a{ending}").write_bytes(
        gzip.compress(content) if ending.endswith("gz") else content
    )
    _, rows = read_rows(path, encoding)
    assert [row["text"] for _, row in rows] == texts
    with pytest.raises(DataError, match=r"UTF-8.*--encoding"):
        list(read_rows(path)[1])


def test_an_encoding_is_refused_where_it_is_none_or_says_nothing(tmp_path, table):
    with pytest.raises(ConfigError, match="klingon"):
        list(read_rows(table, "klingon")[1])
    with pytest.raises(ConfigError, match="latin-1"):
        read_rows(str(tmp_path / "a.parquet"), "latin-1")


ROW_OF_CELLS = {"more": ("a,b,c", 3), "fewer": ("a", 1), "quoted": ('"a\nb",c,d', 3)}


@pytest.mark.parametrize(("row", "cells"), ROW_OF_CELLS.values(), ids=ROW_OF_CELLS)
@pytest.mark.parametrize("before", [1, 3])
def test_a_row_with_other_cells_than_columns_is_refused_by_its_line(tmp_path, row, cells, before):
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "good,1\n" * before + row + "\nfine,0\n")
    line = 1 + before + row.count("\n") + 1
    _, rows = read_rows(str(path))
    with pytest.raises(DataError, match=f"line {line}, has {cells} cells for 2 columns"):
        list(rows)


def test_rows_without_a_class_are_counted_and_may_be_left_out(tmp_path):
    rows = [*zip(TEXTS, LABELS, strict=True), ("odd", ""), ("odder", " "), ("", "")]
    rows[3], rows[5] = (TEXTS[3], "YES "), (TEXTS[5], "nan")
    path = csv_of(tmp_path / "x.csv", rows=rows)
    said = '1 of 63 .*text .row 63.* 2 of 63 .*label .rows 61, 62.*"YES" and "yes" may be one'
    with pytest.raises(DataError, match=said):
        load("table", path=path)
    dataset = load("table", path=csv_of(tmp_path / "y.csv", rows=rows * 3), drop_missing=True)
    assert sum(len(getattr(dataset, p)) for p in ("train", "validation", "test")) == 3 * len(TEXTS)
    notes = " ".join(dataset.notes)
    assert "6 of 189 rows have no label" in notes
    assert "3 of 189 rows have no text" in notes
    assert '"YES" and "yes" may be one' in notes
    assert 'class "nan" looks like a missing value' in notes


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("质量很好，喜欢！", "质 量 很 好 喜 欢"),
        ("とても良い。", "と て も 良 い"),
        ("ดีมาก", "ด ี ม า ก"),
        ("¿Qué tal? «bien»", "qué tal bien"),
        ("좋은 옷", "좋은 옷"),
    ],
)
def test_words_of_other_scripts_are_no_single_token(tmp_path, text, tokens):
    rows = [(f"{text} x{n}", "ab"[n % 2]) for n in range(60)]
    dataset = load("table", path=csv_of(tmp_path / "x.csv", rows=rows))
    assert set(tokens.split()) <= set(dataset.vocabulary)
    assert dataset.lengths.unique().tolist() == [len(tokens.split()) + 1]


def test_texts_of_one_long_word_are_refused_or_read_by_character(tmp_path):
    rows = [("acgt" * 8 + "acgt"[n % 4] * n, "ab"[n % 2]) for n in range(60)]
    path = csv_of(tmp_path / "x.csv", rows=rows)
    with pytest.raises(DataError, match="--tokenizer characters"):
        load("table", path=path)
    dataset = load("table", path=path, words="characters")
    assert sorted(dataset.vocabulary[3:]) == list("acgt")
    with pytest.raises(ConfigError, match="'syllables'"):
        load("table", path=path, words="syllables")


def test_a_spreadsheet_is_told_how_to_become_a_table(tmp_path):
    with pytest.raises(ConfigError, match="python -c .*pandas.read_excel"):
        load("table", path=str(tmp_path / "a b.xlsx"))


def test_parquet_is_read(tmp_path, table):
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    columns = {"text": TEXTS, "label": LABELS, "n": [float("nan")] * 60}
    parquet.write_table(pyarrow.table(columns), path)
    assert read(load("table", path=str(path))) == read(load("table", path=table))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"a\.parquet"):
        load("table", path=str(path))


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    library.disable_progress_bars()
    return library


def of_datasets(library, labels=LABELS):
    """Return a data set whose classes are numbers with names, -1 for none."""
    features = library.Features(
        {"text": library.Value("string"), "label": library.ClassLabel(names=["no", "yes"])}
    )
    numbers = [-1 if label is None else ["no", "yes"].index(label) for label in labels]
    return library.Dataset.from_dict({"text": TEXTS, "label": numbers}, features=features)


def test_a_folder_of_datasets_is_read_with_its_names_of_classes(tmp_path, table, datasets):
    single, several = str(tmp_path / "single"), str(tmp_path / "several")
    of_datasets(datasets).save_to_disk(single)
    datasets.DatasetDict(train=of_datasets(datasets), test=of_datasets(datasets)).save_to_disk(
        several
    )
    expected = read(load("table", path=table))
    assert read(load("table", path=single)) == expected
    assert read(load("table", path=several)) == expected
    assert read(load("table", path=f"{several}/test")) == expected
    of_datasets(datasets, [None, *LABELS[1:]]).save_to_disk(str(tmp_path / "missing"))
    with pytest.raises(DataError, match="1 of 60 .*label .row 1.*drop-missing"):
        load("table", path=str(tmp_path / "missing"))
    datasets.DatasetDict(dev=of_datasets(datasets)).save_to_disk(str(tmp_path / "other"))
    with pytest.raises(DataError, match="splits dev"):
        load("table", path=str(tmp_path / "other"))


def test_a_data_set_of_the_hub_is_read_by_its_split(tmp_path, table, datasets, monkeypatch):
    """The library takes a folder ORG/NAME before the hub, so nothing is downloaded here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "team" / "set").mkdir(parents=True)
    for split in ("train", "test"):
        (tmp_path / "team" / "set" / f"{split}.csv").write_bytes(Path(table).read_bytes())
    assert read(load("table", path="hf:team/set")) == read(load("table", path=table))
    assert classes("hf:team/set:test") == ["no", "yes"]
    assert digest("hf:team/set") == digest("hf:team/set:test") != digest(table)
    with pytest.raises(DataError, match="nowhere"):
        classes("hf:team/set:nowhere")
    with pytest.raises(ConfigError, match="ORG/NAME"):
        classes("hf:team")


def test_data_sets_without_their_extra_name_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"\[hub\]"):
        load("table", path="hf:team/set")


def test_parquet_without_its_extra_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"\[parquet\]"):
        load("table", path=str(tmp_path / "a.parquet"))


def test_options_are_refused(tmp_path, table):
    with pytest.raises(ConfigError, match="table: no file is given"):
        load("table")
    with pytest.raises(ConfigError, match="'text'"):
        load("table", path=table, columns="text")
    with pytest.raises(ConfigError, match="a.odt"):
        load("table", path=str(tmp_path / "a.odt"))
    with pytest.raises(ConfigError, match="table: length=0"):
        load("table", path=table, length=0)
    with pytest.raises(DataError, match="cannot read .*absent.csv"):
        load("table", path=str(tmp_path / "absent.csv"))


def grouped(path, count=60):
    """Return a table of three rows of two classes for each of 20 customers, whom texts name."""
    rows = [
        f"{n // 3}{' ' * (n % 2)},{n // 3}:{n},{'yes' if n % 3 else 'no'}" for n in range(count)
    ]
    path.write_text("\n".join(["customer,text,label", *rows]))
    return str(path)


def customers(texts):
    return {"".join(text.split()).partition(":")[0] for text in texts}


def test_rows_of_a_group_are_in_one_part_and_in_one_fold(tmp_path):
    options = {"path": grouped(tmp_path / "a.csv"), "groups": "customer", "words": "characters"}
    dataset = load("table", **options, test=0.2)
    parts = [customers(text for text, _ in rows) for rows in read(dataset).values()]
    assert sorted(map(len, parts)) == [2, 4, 14]
    assert len(set().union(*parts)) == 20
    assert "20 groups in 60 rows" in " ".join(dataset.notes)
    tested, groups = [], {}
    for fold in range(5):
        part = load("table", **options, folds=5, fold=fold)
        tested.append(customers(part.test_texts[row] for row in part.test_rows.tolist()))
        assert not tested[-1] & customers(text for text, _ in read(part)["train"])
        groups |= dict(zip(part.test_rows.tolist(), part.test_groups.tolist(), strict=True))
    assert [len(names) for names in tested] == [4] * 5
    assert len(set().union(*tested)) == 20
    assert [groups[row] for row in range(60)] == [row // 3 for row in range(60)]


@pytest.mark.parametrize(("groups", "encoding"), [(None, "utf-8"), ("customer", "utf-16")])
def test_what_files_for_test_and_validation_hold_is_not_trained_on(tmp_path, groups, encoding):
    path, held = tmp_path / "a.csv", {"test": [7], "validation": [3, 12]}
    grouped(path)
    path.write_text(path.read_text(), encoding)
    files, gone = {}, set()
    for part, of_part in held.items():
        files[part] = tmp_path / f"{part}.csv"
        lines = [f"{n},{n}:{3 * n if groups is None else 'new'},no" for n in of_part]
        lines = ["customer,text,label", *lines, "99,99:new,yes"]
        files[part].write_text("\n".join(lines), encoding)
        gone |= {r for n in of_part for r in range(3 * n, 3 * n + (1 if groups is None else 3))}
    options = {part: str(file) for part, file in files.items()} | {"encoding": encoding}
    dataset = load("table", path=str(path), groups=groups, words="characters", **options)
    parts = {p: ["".join(t.split()) for t, _ in rows] for p, rows in read(dataset).items()}
    assert sorted(parts["train"]) == sorted(f"{n // 3}:{n}" for n in range(60) if n not in gone)
    assert (len(parts["test"]), len(parts["validation"])) == (2, 3)
    assert f"{len(gone)} rows whose {groups or 'text'} is in" in " ".join(dataset.notes)


def test_the_groups_of_a_file_for_test_are_numbered(tmp_path):
    path, test = grouped(tmp_path / "a.csv"), tmp_path / "t.csv"
    options = {"path": path, "groups": "customer", "test": str(test), "validation": 0.1}
    test.write_text("customer,text,label\n7,new,yes\n8,old,yes\n7,other,no\n")
    first, second, third = load("table", **options).test_groups.tolist()
    assert first == third != second
    test.write_text("customer,text,label\n7,new,yes\n7,other,no\n")
    with pytest.raises(ConfigError, match="1 group of 'customer'"):
        load("table", **options)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"groups": "label"}, ConfigError, "label"),
        ({"groups": "text"}, ConfigError, "text"),
        ({"groups": "buyer"}, DataError, "buyer"),
        ({"groups": "number"}, ConfigError, "no two rows"),
        ({"groups": "customer", "validation": 0.01}, ConfigError, "20 groups"),
        ({"groups": "half", "folds": 5}, ConfigError, "2 groups"),
        ({"groups": "empty"}, DataError, "row 2"),
    ],
)
def test_groups_that_make_no_sense_are_refused(tmp_path, options, error, named):
    lines = ["customer,text,label,number,half,empty"]
    lines += [f"c{n // 3},t {n},{n % 2},{n},{n % 2},{'' if n == 1 else n // 3}" for n in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    with pytest.raises(error, match=named):
        load("table", **{"path": str(tmp_path / "a.csv"), "validation": 0.5, **options})
