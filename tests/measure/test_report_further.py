from __future__ import annotations

from dataclasses import replace

import pytest

from suffice.errors import ConfigError, DataError
from suffice.measure.report.tables import build_rows, sheets
from suffice.measure.results import Cell, Results, read_cell, write_cell
from suffice.measure.sentence import notes
from suffice.measure.verdict import judge
from suffice.records import decode, encode

from .synthetic import make_cell, make_results

SIGNATURE = "nrefs:1|tok:none|version:2.6.0"
# mechanism: BLEU, perplexity and balanced accuracy of two seeds
SCORES = {
    "standard": ((20.0, 22.0), (9.0, 9.2), (0.30, 0.32)),
    "efficient": ((21.0, 21.0), (8.0, 8.2), (0.31, 0.31)),
    "optimised": ((19.0, 19.0), (9.5, 9.5), (0.29, 0.29)),
}


def scored(**changes) -> Results:
    cells = []
    for name, figures in SCORES.items():
        for seed in (0, 1):
            named = zip(("bleu", "perplexity", "balanced_accuracy"), figures, strict=True)
            scores = {score: values[seed] for score, values in named}
            cell = make_cell(name, 4, seed)
            cells.append(replace(cell, scores=scores, signatures={"bleu": SIGNATURE}))
    return make_results(cells, **changes)


def bare() -> Results:
    return make_results([make_cell()])


def sheet_of(results: Results):
    verdict = judge(results)
    found = sheets(results, verdict, build_rows(results, verdict))
    return next((one for one in found if one.title.startswith("Further")), None)


def test_the_further_table_holds_every_score_its_spread_and_place():
    sheet = sheet_of(scored())
    assert sheet.columns == ("mechanism", "heads", "bleu", "perplexity", "balanced accuracy")
    assert [line.cells for line in sheet.lines] == [
        ("standard", "4", "21.00 ± 1.41 (1)", "9.10 ± 0.14 (2)", "31.00 ± 1.41 (1)"),
        ("efficient", "4", "21.00 ± 0.00 (1)", "8.10 ± 0.14 (1)", "31.00 ± 0.00 (1)"),
        ("optimised", "4", "19.00 ± 0.00 (3)", "9.50 ± 0.00 (3)", "29.00 ± 0.00 (3)"),
    ]
    assert sheet.caption.startswith("Mean over 2 seeds ± sd")
    assert "Balanced accuracy in percent." in sheet.caption


def test_signatures_stand_among_the_notes_once_each():
    results = scored()
    found = [note for note in notes(judge(results), results) if "ignature" in note]
    assert found == [f"Signature of bleu: {SIGNATURE}"]
    assert not any("ignature" in note for note in notes(judge(bare()), bare()))


def test_a_task_without_further_scores_has_no_such_table():
    assert sheet_of(bare()) is None


def test_the_papers_bleu_stands_below_ours():
    sheet = sheet_of(scored(task="translation_es", recipe="translation_es"))
    line = sheet.lines[1]
    assert line.from_paper
    assert line.cells == ("paper", "", "22.80", "", "")
    assert "arXiv:2403.01643" in sheet.caption
    assert "arXiv" not in sheet_of(scored()).caption


def test_one_seed_has_no_spread_and_a_score_that_some_seeds_lack_is_a_dash():
    results = scored()
    cells = [cell for cell in results.cells if cell.seed == 0 or cell.mechanism != "efficient"]
    lacking = replace(cells[-1], scores={"bleu": 19.0}, signatures={})
    sheet = sheet_of(make_results([*cells[:-1], lacking]))
    by_name = {line.cells[0]: line.cells[2:] for line in sheet.lines}
    assert by_name["efficient"][0].startswith("21.00 (")
    assert by_name["optimised"][1:] == ("-", "-")
    assert "(" not in by_name["standard"][1], "no places where one is missing"


def test_scores_survive_the_disk(tmp_path):
    cell = scored().cells[0]
    write_cell(tmp_path, cell)
    assert read_cell(tmp_path, *cell.key) == cell
    odd = replace(cell, scores={"perplexity": float("inf")}, signatures={})
    write_cell(tmp_path, odd)
    assert read_cell(tmp_path, *cell.key) == odd


def test_a_record_from_before_there_were_scores_is_read():
    given = encode(make_cell().__dict__)
    del given["scores"], given["signatures"]
    cell = decode(Cell, given, where="old.json")
    assert (cell.scores, cell.signatures) == ({}, {})


def test_scores_that_are_no_numbers_are_refused():
    given = encode(make_cell().__dict__)
    with pytest.raises(DataError, match=r"old.json: scores: bleu is 'many'; it must be a number"):
        decode(Cell, {**given, "scores": {"bleu": "many"}}, where="old.json")
    with pytest.raises(ConfigError, match="signatures of bleu, which is no score here"):
        replace(make_cell(), signatures={"bleu": SIGNATURE})
