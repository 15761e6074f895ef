"""Text classification from the user's table, in any form that `read_rows` reads."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from suffice.data.dataset import Dataset, check_counts, folds_of_keys, parts_of_keys, sha1_of
from suffice.data.reviews import RULES, UNSPACED, check_vocabulary_size, dataset_of_texts
from suffice.data.reviews import words as words_of
from suffice.data.rows import UTF_8, plain_text, read_rows, refuse_columns, split_columns
from suffice.errors import ConfigError, DataError, check_known

COLUMNS = "text,label"
MIN_CLASS_ROWS = 3  # rows of a class on average: a price or a name is none
LEVELS = 20  # different fractions that are taken for classes, such as half stars
SEVERAL = 0.1  # share of the rows that name several labels, from which on a column holds lists
HELD_OUT = 0.1  # share of the rows for the test split, and for validation
LISTED_ROWS = 5  # rows with a missing value that are named
SNIFFED_ROWS = 200  # rows that columns, and whether texts have words, are guessed by
FEWEST_FOLDS, MOST_FOLDS = 2, 20
FEWEST_GROUPS = 2  # of test rows: one has no spread
ONE_WORD = 20  # characters of a text that is more than a word, where it has no spaces
MISSING = {"nan", "none", "null", "na", "n/a", "nil", "?", "-", "unknown", "missing"}
"""Names of classes that look like a missing value."""

READS = "reads"  # entry of facts: which tokens of a text a model with another tokenizer reads

Row = tuple[str, str]
Tokenize = Callable[[Sequence[str]], Any]


def table(
    *,
    path: str | None = None,
    columns: str = COLUMNS,
    groups: str | None = None,
    test: str | float = HELD_OUT,
    validation: str | float = HELD_OUT,
    stratify: bool = True,
    drop_missing: bool = False,
    encoding: str = UTF_8,
    words: str | Tokenize = "unicode",
    reads: str = "end",
    folds: int | None = None,
    fold: int = 0,
    length: int = 64,
    vocabulary_size: int = 20_000,
    rows: int | None = None,
) -> Dataset:
    """Load a table that has a column of texts and a column of classes.

    The last words of each text are read. Classes are numbers in their order, else words in
    alphabetical order. Test and validation are shares of the rows
    or files of their own. Equal texts are never in two parts: rows are cut by their texts, and
    training rows whose text is in a file for the test or validation are left out.

    Args:
        path: a .csv or .tsv whose first line names the columns, a .jsonl of objects, a .parquet,
            or a data set of the library datasets; see `suffice.data.rows.read_rows`.
        columns: the names of the column of texts and of that of classes, with a comma between.
        groups: column of what rows belong to, such as a customer: rows of one group are in one
            part, where otherwise equal texts are. A group may have several classes.
        test: share of the rows for the test, or another such file with the same columns.
        validation: share or file of the validation split.
        stratify: True gives every part the same share of each class; False cuts by the text alone,
            so that further rows move no other.
        drop_missing: leave out rows without a text or a class; without it they are refused.
        encoding: encoding of a .csv, .tsv or .jsonl, such as "latin-1".
        words: rule that cuts texts into words, see `suffice.data.reviews.words`; or a function
            that makes a `suffice.text.Tokenizer` of the training texts.
        reads: tokens of such a tokenizer that are read, see `rows_of_tokens`.
        folds: number of folds, one of which is the test split; None uses `test`.
        fold: number of that part; `folds` and more are of further partitions. Texts that are equal
            as they are read are in one fold. The validation part is drawn from the other folds.
        length: tokens of each row, >= 1.
        vocabulary_size: the most ids there may be, >= 4; rarer words become unknown.
        rows: training rows that are kept at most; None takes all.

    Shapes:
        inputs: int64 [N, length]; valid: bool [N, length], False at padding in front
    """
    check_counts("table", length=length, rows=rows)
    check_vocabulary_size(vocabulary_size)
    rule = words if isinstance(words, str) else "unicode"
    check_known("rule of words", rule, RULES)
    files = read_files(
        path,
        columns,
        groups=groups,
        test=test,
        validation=validation,
        drop_missing=drop_missing,
        encoding=encoding,
    )
    notes = (*files.notes, *_script_notes(files, words, str(path)))
    numbers = {name: number for number, name in enumerate(files.classes)}
    options: dict[str, Any] = {}
    if folds is None:
        parts, tested = _parts(files, stratify=stratify)
    else:
        check_folds(folds, test, validation)
        keys = files.keys
        if groups is not None and len(set(keys)) < folds:
            raise ConfigError(
                f"folds={folds}: column {groups!r} holds {len(set(keys))} groups; give fewer folds."
            )
        if isinstance(words, str) and groups is None:
            keys = [" ".join(words_of(text, rule)[-length:]) for text in keys]
        parts, test_rows = _parts_of_fold(files, keys, folds, fold, stratify=stratify)
        tested = [files.keys[row] for row in test_rows]
        options = {
            "test_rows": torch.tensor(test_rows),
            "test_texts": tuple(text for text, _ in files.pairs),
        }
    if groups is not None:
        number = {key: place for place, key in enumerate(dict.fromkeys([*files.keys, *tested]))}
        options["test_groups"] = torch.tensor([number[key] for key in tested])
        if folds is None and len(set(tested)) < FEWEST_GROUPS:
            raise ConfigError(
                f"{path}: {len(set(tested))} group of {groups!r} is in the test part, which tells "
                f"nothing of other groups; give {FEWEST_GROUPS} or more by a larger --test."
            )
    return dataset_of_texts(
        {
            part: ([text for text, _ in pairs], [numbers[label] for _, label in pairs])
            for part, pairs in parts.items()
        },
        **options,
        where=str(path),
        unit="row",
        name="table",
        title=f"{Path(str(path)).name}, {len(files.classes)} classes",
        source=f"the file {Path(str(path)).name}",
        num_classes=len(files.classes),
        class_names=files.classes,
        length=length,
        vocabulary_size=vocabulary_size,
        rows=rows,
        rule=rule,
        learn_tokenizer=None if isinstance(words, str) else words,
        reads=reads,
        facts={"columns": list(files.columns)} | ({} if isinstance(words, str) else {READS: reads}),
        notes=notes,
    )


@dataclass(frozen=True, kw_only=True)
class Files:
    """The rows of a user's files."""

    columns: tuple[str, str]  # columns of texts and classes
    classes: tuple[str, ...]  # their names, in the order of their numbers
    pairs: list[Row]  # text and class of each row of the first file
    keys: list[str]  # text or group of each of these rows; rows with equal keys stay in one part
    groups: str | None  # column of the groups; None: keys are texts
    # the rows of "test" and "validation", or their share of the first file's
    held_out: dict[str, list[Row] | float]
    test_keys: list[str]  # keys of the rows of a file for the test; empty without one
    notes: tuple[str, ...] = ()  # sentences about rows that were left out


def read_files(
    path: str | None,
    columns: str = COLUMNS,
    *,
    groups: str | None = None,
    test: str | float = HELD_OUT,
    validation: str | float = HELD_OUT,
    drop_missing: bool = False,
    encoding: str = UTF_8,
) -> Files:
    """Read the files of a table; arguments and errors as `table`."""
    if path is None:
        raise ConfigError(
            "table: no file is given; name a .csv, .tsv, .jsonl or .parquet, on the command line "
            "by --data."
        )
    options = {"columns": columns, "groups": groups}
    read = partial(_read, **options, drop_missing=drop_missing, encoding=encoding)
    pairs, keys, named, notes = read(path)
    held_out: dict[str, list[Row] | float] = {}
    taken: set[str] = set()
    test_keys: list[str] = []
    for part, value in (("test", test), ("validation", validation)):
        share = share_of(value)
        if share is not None:
            held_out[part] = check_share(part, share)
            continue
        held_out[part], its_keys, _, more = read(str(value))
        taken.update(its_keys)
        if part == "test":
            test_keys = its_keys
        notes += more
    shares = sum(value for value in held_out.values() if isinstance(value, float))
    if shares >= 1.0:
        raise ConfigError(
            f"test and validation take {shares:.0%} of the rows; leave some to learn."
        )
    if groups is not None:
        notes.append(_check_groups(groups, keys, path, held_out))
    names = _classes(pairs, path, named[1])
    for part, rows in held_out.items():
        if isinstance(rows, list) and (strange := {label for _, label in rows} - set(names)):
            raise DataError(
                f"the file for {part} has the class {min(strange)!r}, which no row of {path} has; "
                "give rows of each class to learn from, or leave it out."
            )
    notes += _suspicious(Counter(label for _, label in pairs))
    kept = [(row, key) for row, key in zip(pairs, keys, strict=True) if key not in taken]
    if len(kept) < len(pairs):
        notes.append(
            f"{len(pairs) - len(kept):,} rows whose {groups or 'text'} is in the file for test or "
            "validation were left out of the training"
        )
    return Files(
        columns=named,
        classes=tuple(names),
        pairs=[row for row, _ in kept],
        keys=[key for _, key in kept],
        groups=groups,
        held_out=held_out,
        test_keys=test_keys,
        notes=tuple(notes),
    )


def _check_groups(
    groups: str, keys: list[str], path: str, held_out: dict[str, list[Row] | float]
) -> str:
    count = len(set(keys))
    if count == len(keys):
        raise ConfigError(f"{path}: no two rows share a value of {groups!r}; leave --groups out.")
    for part, share in held_out.items():
        if isinstance(share, float) and share * count < 1:
            raise ConfigError(
                f"{path}: {count} groups of {groups!r} are too few for a {part} part of {share:g}; "
                f"give a larger share, such as --{part} {math.ceil(100 / count) / 100:g}."
            )
    return (
        f"rows that share a value of {groups!r} are in one part ({count:,} groups in {len(keys):,} "
        "rows); intervals are those of groups, of which few tell less than their rows would alone"
    )


def share_of(value: str | float) -> float | None:
    """Return the number that a share is; None for the name of a file.

    Example:
        >>> share_of("0.2"), share_of("test.csv")
        (0.2, None)
    """
    try:
        return float(value)
    except ValueError:
        return None


def check_share(part: str, share: float) -> float:
    """Return a share of the rows; raise ConfigError for one that leaves none for a part."""
    if not 0.0 < share < 1.0:
        raise ConfigError(f"{part}={share:g}; give a share between 0 and 1, or a file.")
    return share


def _read(
    path: str, columns: str, *, groups: str | None, drop_missing: bool, encoding: str
) -> tuple[list[Row], list[str], tuple[str, str], list[str]]:
    there, rows = read_rows(path, encoding)
    text, label = named = _columns(path, columns, there, rows)
    if groups in named:
        raise ConfigError(f"--groups {groups}: this column holds texts or classes; name another.")
    needed = [text, label, *([] if groups is None else [groups])]
    if groups is not None and groups not in there:
        refuse_columns(path, there, [groups], hint="name that of the groups with --groups.")
    pairs: list[Row] = []
    keys: list[str] = []
    missing: dict[str, list[int]] = {name: [] for name in needed}  # numbers of the rows without
    for number, row in rows:
        content, value = plain_text(row.get(text)), row.get(label)  # absent, in JSON, is missing
        if isinstance(value, (list, dict)):
            _refuse_lists(path, label, plain_text(value))
        name = plain_text(value).strip()
        key = content if groups is None else plain_text(row.get(groups)).strip()
        lacking = [c for c, of in zip(needed, (content.strip(), name, key), strict=False) if not of]
        if lacking:
            missing[lacking[0]].append(number)
        else:
            pairs.append((content, name))
            keys.append(key)
    total = len(pairs) + sum(map(len, missing.values()))
    notes = [_missing_note(name, numbers, total) for name, numbers in missing.items() if numbers]
    if notes and not drop_missing:
        also = "".join(f" Also: {note}." for note in _suspicious(Counter(n for _, n in pairs)))
        raise DataError(
            f"{path}: {' and '.join(notes)}; fill them in, or leave these rows out with "
            f"--drop-missing.{also}"
        )
    return pairs, keys, named, [f"{note} of {path}; they were left out" for note in notes]


def _missing_note(column: str, numbers: list[int], rows: int) -> str:
    """Return how many rows lack a column, and which.

    Example:
        >>> _missing_note("label", [3, 7], 2000)
        '2 of 2,000 rows have no label (rows 3, 7)'
    """
    first = ", ".join(f"{number:,}" for number in numbers[:LISTED_ROWS])
    more = ", ..." if len(numbers) > LISTED_ROWS else ""
    plural = "s" if len(numbers) > 1 else ""
    return f"{len(numbers):,} of {rows:,} rows have no {column} (row{plural} {first}{more})"


def _columns(
    path: str, columns: str, there: list[str], rows: Iterator[tuple[int, dict[str, object]]]
) -> tuple[str, str]:
    named = split_columns(columns, there)
    if named is None:
        raise ConfigError(
            f"columns {columns!r}: name the column of texts and that of classes, such as {COLUMNS};"
            " a name that holds a comma is quoted."
        )
    if not set(named) <= set(there):
        refuse_columns(path, there, named, hint=_advice(rows))
    if repeated := [name for name in named if there.count(name) > 1]:
        raise DataError(f"{path} has several columns {repeated[0]!r}; name each but once.")
    return named


def _suspicious(counts: Counter[str]) -> list[str]:
    """Return a sentence for classes that differ in case or punctuation alone, or look missing.

    Example:
        >>> _suspicious(Counter(["good", "Good", "GOOD.", "nan"]))
        ['classes "GOOD.", "Good" and "good" may be one', 'class "nan" looks like a missing value']
    """
    alike: dict[str, list[str]] = {}
    for name in sorted(counts):
        plain = "".join(filter(str.isalnum, name.casefold()))
        if plain and _numbers(Counter([name])) is None:
            alike.setdefault(plain, []).append(f'"{name}"')
    notes = [
        f"classes {', '.join(names[:-1])} and {names[-1]} may be one"
        for names in alike.values()
        if len(names) > 1
    ]
    return notes + [
        f'class "{name}" looks like a missing value'
        for name in sorted(counts)
        if name.casefold() in MISSING
    ]


def one_word_length(pairs: Sequence[Row]) -> int | None:
    """Return the median length of texts of one long word each, in characters; None for others.

    Example:
        >>> one_word_length([("acgt" * 9, "a")] * 4), one_word_length([("a good film", "a")] * 4)
        (36, None)
    """
    texts = [text for text, _ in pairs[:SNIFFED_ROWS]]
    lengths = sorted(len(words_of(text, "unicode")) for text in texts)
    characters = sorted(map(len, texts))
    middle = len(texts) // 2
    if not texts or lengths[middle] > 1 or characters[middle] < ONE_WORD:
        return None
    return characters[middle]


def _script_notes(files: Files, words: str | Tokenize, where: str) -> tuple[str, ...]:
    """Return how texts without spaces are read; refuse texts of one long word read by word.

    Nothing could be learnt from them but by heart.
    """
    length = one_word_length(files.pairs)
    if length is not None and words in ("unicode", "ascii"):
        raise DataError(
            f"{where}: most texts are one word of {length} characters (median), as they have no "
            "spaces; read them by character or by byte pairs, with --tokenizer characters or bpe."
        )
    if length is not None and words == "characters":
        return (f"most texts are one word of {length} characters, so characters are read",)
    texts = [text for text, _ in files.pairs[:SNIFFED_ROWS]]
    letters = sum(len(text) for text in texts)
    without = sum(len(re.findall(f"[{UNSPACED}]", text)) for text in texts)
    if words == "unicode" and without > letters / 2:
        return (
            "most texts are of a script without spaces between words, so each character of it is "
            "read as a word; --tokenizer bpe learns longer pieces",
        )
    return ()


def _advice(rows: Iterator[tuple[int, dict[str, object]]]) -> str:
    advice = "name that of the texts and that of the classes, on the command line by --columns"
    guessed = guess_columns([row for _, row in islice(rows, SNIFFED_ROWS)])
    return (
        f"{advice} TEXT,LABEL." if guessed is None else f'{advice}, such as "{",".join(guessed)}".'
    )


def guess_columns(rows: Sequence[dict[str, object]]) -> tuple[str, str] | None:
    """Return the columns that look like texts and classes: the longest, and one of few values.

    Example:
        >>> rows = [{"id": n, "review": f"a nice dress {n}", "stars": n % 2} for n in range(8)]
        >>> guess_columns(rows)
        ('review', 'stars')
    """
    if not rows:
        return None
    values = {name: [plain_text(row.get(name)) for row in rows] for name in rows[0]}
    text = max(values, key=lambda name: sum(map(len, values[name])))
    few = {name: len(set(column)) for name, column in values.items() if name != text}
    few = {name: count for name, count in few.items() if 2 <= count <= len(rows) / MIN_CLASS_ROWS}
    return (text, min(few, key=lambda name: few[name])) if few else None


def _classes(pairs: list[Row], where: str, column: str) -> list[str]:
    counts = Counter(label for _, label in pairs)
    numbers = _numbers(counts)
    fractions = numbers is not None and any(number % 1 for number in numbers)
    rare = len(counts) * MIN_CLASS_ROWS > len(pairs)
    if numbers is not None and ((fractions and len(counts) > LEVELS) or (rare and len(counts) > 2)):
        raise DataError(
            f"{where}: column {column!r} holds {len(counts):,} different numbers in {len(pairs):,} "
            "rows, which is a quantity to be predicted (regression), and a comparison predicts "
            "classes; cut it into ranges, such as low, middle and high, in a separate column."
        )
    _check_single(counts, len(pairs), where, column)
    if len(counts) < 2 or rare:
        raise DataError(
            f"{where}: column {column!r} holds {len(counts)} different values in {len(pairs)} rows "
            f"with a text; give two classes at least, and {MIN_CLASS_ROWS} rows for each."
        )
    return sorted(counts, key=float) if numbers is not None else sorted(counts)


def _numbers(labels: Counter[str]) -> list[float] | None:
    try:
        return [float(label) for label in labels]
    except ValueError:
        return None


def _check_single(counts: Counter[str], rows: int, where: str, column: str) -> None:
    for separator in (";", "|", ","):
        lists = {label: label.split(separator) for label in counts if separator in label}
        parts = Counter(part.strip() for each in lists.values() for part in each)
        parts |= Counter(label for label in counts if label not in lists)
        several = sum(counts[label] for label in lists)
        if several >= SEVERAL * rows and len(parts) < len(counts):
            _refuse_lists(where, column, next(iter(lists)))


def _refuse_lists(where: str, column: str, example: str) -> None:
    raise DataError(
        f"{where}: column {column!r} names several labels of a row, such as {example!r:.60} "
        "(multi-label), and a comparison predicts one class of each; give a column with one, such "
        "as whether a row has a certain label."
    )


def _parts(files: Files, *, stratify: bool) -> tuple[dict[str, list[Row]], list[str]]:
    shares = {part: rows for part, rows in files.held_out.items() if isinstance(rows, float)}
    # groups may be too few for shares of each class
    classes = [label if files.groups is None else "" for _, label in files.pairs]
    keyed = list(zip(files.keys, classes, strict=True))
    place = parts_of_keys(keyed, shares) if stratify else _hashed(files.keys, shares)
    parts: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    for key, row in zip(files.keys, files.pairs, strict=True):
        parts[place.get(key, "train")].append(row)
    parts |= {part: r for part, r in files.held_out.items() if isinstance(r, list)}
    return parts, files.test_keys or [key for key in files.keys if place.get(key) == "test"]


def check_folds(folds: int, test: str | float, validation: str | float) -> None:
    """Refuse folds that are too few or too many, with a test part, or that leave no training."""
    if not FEWEST_FOLDS <= folds <= MOST_FOLDS:
        raise ConfigError(f"folds={folds}; give {FEWEST_FOLDS} to {MOST_FOLDS}.")
    if test != HELD_OUT:
        raise ConfigError(f"folds={folds} and test={test}: every row is tested once; give one.")
    if (share_of(validation) or 0.0) + 1.0 / folds >= 1.0:
        raise ConfigError(f"folds={folds} and validation={validation} leave no rows to train on.")


def _parts_of_fold(
    files: Files, keys: list[str], folds: int, fold: int, *, stratify: bool
) -> tuple[dict[str, list[Row]], list[int]]:
    """Return the rows of each part, and the numbers of those for the test."""
    turn, tested = divmod(fold, folds)
    classes = [label if stratify else "" for _, label in files.pairs]
    fold_of = folds_of_keys(list(zip(keys, classes, strict=True)), folds, turn=turn)
    # salted, so that the validation rows are others in each fold
    salted = [
        (f"{fold} {key}", label if files.groups is None else "")
        for key, label in zip(keys, classes, strict=True)
        if fold_of[key] != tested
    ]
    share, place = files.held_out["validation"], {}
    if isinstance(share, float):
        place = parts_of_keys(salted, {"validation": share * folds / (folds - 1)})
    parts: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    for key, row in zip(keys, files.pairs, strict=True):
        part = "test" if fold_of[key] == tested else place.get(f"{fold} {key}", "train")
        parts[part].append(row)
    if not isinstance(share, float):
        parts["validation"] = share
    return parts, [number for number, key in enumerate(keys) if fold_of[key] == tested]


def _hashed(keys: list[str], shares: dict[str, float]) -> dict[str, str]:
    place: dict[str, str] = {}
    for key in keys:
        at = sha1_of(key) / (1 << 160)
        for part, share in shares.items():
            if 0.0 <= at < share:
                place[key] = part
            at -= share
    return place
