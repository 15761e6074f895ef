from __future__ import annotations

import csv
import io
import json
import math
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from papers.tests.tiny import TINY, cells, fill
from suffice.comparison import jobs
from suffice.comparison.jobs import Execution
from suffice.comparison.report.sheet import rich_table
from suffice.comparison.results import cell_path
from suffice.comparison.verdict import judge
from suffice.errors import ConfigError, DataError
from suffice.train.recipes import SMALL
from suffice_papers import request as twice_module
from suffice_papers.atlas.grid import atlas_table
from suffice_papers.figures import _results, curves, heads, scaling, write_report
from suffice_papers.folder import run_cells
from suffice_papers.request import request_cells, retrain
from suffice_papers.results import published
from suffice_papers.rows import cell_table, differs, machine_line, rows, to_csv
from suffice_papers.tables import BASELINE, EPOCH, MODEL, TEST, table
from tests.comparison.synthetic import make_cell

KEY = ("standard", 4, 0)


# what is shown


def test_a_table_is_laid_out_as_in_the_paper(tmp_path):
    shown = cell_table(fill(tmp_path, cells(heads=(4,))))
    sheet = shown.sheet()
    assert sheet.title == "tiny: Digits 8x8, ViT of 2 blocks, d_model 64, 16 patches"
    assert sheet.columns[:4] == ("mechanism", "heads", "seeds", "params/layer")
    assert sheet.lines[0].cells[:3] == ("standard", "1", "")
    assert set(sheet.lines[0].cells[3:]) == {""}
    assert sheet.lines[1].cells[0] == "paper"
    first = next(line for line in sheet.lines if line.cells[:3] == ("standard", "4", "2"))
    assert first.starts_group
    assert first.cells[3] == "100 (3)"
    assert first.cells[7] == "97.10 ± 1.27 (1)"
    assert "arXiv:2403.01643, v2 table 5" in sheet.caption
    assert "6 of 12 cells were not run." in sheet.caption
    assert "minutes of training on" in sheet.caption


def stand_in(monkeypatch) -> None:
    """Let the digits stand in for the reviews of IMDB."""
    module = sys.modules["suffice_papers.tables"]  # the name is a function's too
    monkeypatch.setattr(module, "stands_for", {"digits_vit": "imdb"}.get)


def test_data_that_stand_in_and_a_small_scale_are_stated(tmp_path, monkeypatch):
    stand_in(monkeypatch)
    signed = [replace(cells()[0], scores={"bleu": 1.0}, signatures={"bleu": "nrefs:1"})]
    request = fill(tmp_path, [*signed, *cells()[1:]])
    small = replace(request, recipe=replace(request.recipe, scale="small"))
    sheet = cell_table(small).sheet()
    said = ", in place of IMDB reviews; small scale: not the paper's size; the paper's lines: other"
    assert sheet.title.endswith(f"{said} size and data")
    assert "The paper's figures are of IMDB reviews." in sheet.caption
    name = "paper (other size and data)"
    assert f"Lines named {name}: arXiv" in sheet.caption
    assert {line.cells[0] for line in sheet.lines if line.is_reference} == {name}
    assert "bleu: nrefs:1." in sheet.caption


def test_json_csv_and_figures_say_in_what_the_paper_differs(tmp_path, monkeypatch):
    request = fill(tmp_path, cells())
    assert differs(request) == ()
    dotted = {":"}
    assert dotted < {line.get_linestyle() for line in drawn(heads(cell_table(request)))}
    small = cell_table(replace(request, recipe=replace(request.recipe, scale="small")))
    assert small.to_json()["paper_differs_in"] == ["size"]
    lines = list(csv.DictReader(io.StringIO(to_csv([small, cell_table(request)]))))
    assert {line["paper_differs_in"] for line in lines} == {"size", ""}
    figure = heads(small)
    assert all(not len(line.get_xdata()) for line in drawn(figure) if line.get_linestyle() == ":")
    stand_in(monkeypatch)
    assert differs(request) == ("data",)
    assert request.table.headline == "Digits, in place of IMDB reviews"
    part = replace(request, table=replace(TINY, recipe="amazon", more="all of them"))
    assert differs(part) == ("data",)
    assert differs(replace(part, data="all.jsonl")) == ()
    assert "The paper's figures are of all of them." in cell_table(part).sheet().caption
    assert differs(replace(part, table=replace(TINY, paper=""))) == ()


def drawn(figure):
    """Every line of a figure."""
    return [line for axes in figure.axes for line in axes.lines]


def test_machines_and_minutes_are_written_short():
    machine = {"cpu": None, "cores": 8, "threads": 2, "gpu": "Some GPU"}
    assert machine_line(machine) == ("an unknown processor (8 cores, 2 threads each), Some GPU")
    assert machine_line({}) == "an unknown machine"


def test_a_loss_that_ran_away_is_a_word_in_json(tmp_path):
    lost = [replace(cell, test_loss=math.inf) for cell in cells()]
    shown = cell_table(fill(tmp_path, lost))
    content = json.dumps(shown.to_json(), allow_nan=False)
    assert json.loads(content)["rows"][0]["figures"]["test_loss"]["mean"] == "inf"
    console = Console(width=200, file=io.StringIO())
    console.print(rich_table(shown.sheet()))
    assert " inf (1)" in console.file.getvalue()


def test_json_and_csv_hold_what_is_printed(tmp_path):
    shown = cell_table(fill(tmp_path, cells(heads=(4,))))
    content = json.loads(json.dumps(shown.to_json()))
    row = next(row for row in content["rows"] if row["heads"] == 4)
    accuracy = row["figures"]["test_accuracy"]
    assert accuracy["mean"] == pytest.approx(0.971)
    assert (accuracy["n"], accuracy["rank"], accuracy["paper"]) == (2, 1, 0.9812)
    assert (content["scale"], len(content["missing"])) == ("paper", 6)
    unprinted = replace(shown, request=replace(shown.request, table=replace(TINY, paper="")))
    assert len(to_csv([cell_table(unprinted.request)]).splitlines()) == 1 + 3 * len(TINY.columns)
    lines = list(csv.DictReader(io.StringIO(to_csv([shown]))))
    line = next(
        x
        for x in lines
        if (x["mechanism"], x["heads"], x["figure"]) == (*KEY[:1], "4", "test_loss")
    )
    assert (line["rank"], line["paper"], line["n"]) == ("1", "0.062", "2")
    assert not any(line["mean"] == line["paper"] == "" for line in lines)


# figures


def test_the_report_has_numbers_and_figures_that_do_not_depend_on_the_day(tmp_path):
    columns = (MODEL, *TINY.columns)
    table = replace(TINY, figures=("curves", "heads", "scaling"), columns=columns)
    shown = cell_table(replace(fill(tmp_path / "run", cells()), table=table))
    folder = write_report(table, [shown], tmp_path / "report")
    names = [
        "table.json",
        "table.csv",
        *(f"{n}.{e}" for n in table.figures for e in ("png", "svg")),
    ]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    svg = (folder / "heads.svg").read_text()
    one = replace(table, figures=("heads",))
    again = write_report(one, [shown], tmp_path / "again")
    assert (again / "heads.svg").read_text() == svg
    assert "<dc:date>" not in svg


def test_tables_of_many_parts_name_their_figures_and_leave_out_what_was_not_run(tmp_path):
    shown = cell_table(fill(tmp_path / "run", cells()))
    empty = cell_table(request_cells(replace(TINY, name="other"), out=tmp_path / "nothing"))
    folder = write_report(replace(TINY, figures=("heads",)), [shown, empty], tmp_path / "report")
    assert {path.name for path in folder.glob("*.png")} == {"heads-tiny.png"}


def test_curves_show_every_head_and_the_scale(tmp_path):
    request = fill(tmp_path, cells())
    shown = cell_table(replace(request, recipe=replace(request.recipe, scale="small")))
    figure = curves(shown)
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["1 head", "4 heads"]


def test_head_plots_show_ours_with_intervals_and_the_papers(tmp_path):
    figure = heads(cell_table(fill(tmp_path, cells())))
    accuracy = figure.axes[0]
    bars = accuracy.containers
    assert len(bars) == 3
    assert bars[0][0].get_ydata() == pytest.approx([97.1, 97.1])
    dotted = [line for line in accuracy.lines if line.get_linestyle() == ":"]
    assert [round(y, 2) for y in dotted[0].get_ydata()] == [98.02, 98.12]


def test_scaling_is_drawn_over_parameters(tmp_path):
    table = replace(TINY, columns=(MODEL, *TEST), heads=(4,))
    request = replace(fill(tmp_path, cells(heads=(4,))), table=table, heads=(4,))
    grown = [make_cell(c.mechanism, 4, c.seed, parameters=9_000_000) for c in request.finished]
    parts = [cell_table(request), cell_table(replace(request, finished=tuple(grown)))]
    growing = replace(TINY, name="growing", title="From few to many parameters")
    figure = scaling(growing, parts)
    assert figure.get_supxlabel() == "From few to many parameters"
    less = replace(request, recipe=replace(request.recipe, scale="small"))
    marked = scaling(growing, [*parts, cell_table(less)])
    assert marked.get_supxlabel() == f"From few to many parameters ({SMALL})"
    lines = figure.axes[0].containers
    assert list(lines[0][0].get_xdata()) == pytest.approx([0.0403, 27.04])


# how cells are run


def test_cells_are_handed_to_the_engine_with_a_deadline(plan, tmp_path, monkeypatch):
    handed = {}

    def train(workers, cells, **options):
        handed.update(options, engine=workers.engine)
        return cells

    monkeypatch.setattr(jobs.Pool, "train", train)
    options = Execution(jobs=3, threads=2, minutes=1.0, quiet=True)
    console = Console(file=io.StringIO())
    done = run_cells(plan, plan.cells, tmp_path, options, console=console, command="by hand")
    assert done == plan.cells
    assert isinstance(handed["engine"], jobs.LocalProcesses)
    assert handed["engine"].jobs == 3
    assert 50 < handed["deadline"] - time.monotonic() <= 60
    ran = json.loads((tmp_path / "ran.json").read_text())
    assert (ran["command"], ran["threads"]) == ("by hand", 2)


# a cell again


def test_a_cell_trained_again_stands_beside_the_first(tmp_path, monkeypatch):
    request = fill(tmp_path, cells())

    def again(plan, keys, folder, means, *, console, command):
        fill(folder, [replace(cells()[0], test_accuracy=0.98)])
        return keys

    monkeypatch.setattr(twice_module, "run_cells", again)
    sheet = retrain(
        request, ("standard", 1, 0), Execution(), console=Console(file=io.StringIO()), command=""
    )
    line = next(line for line in sheet.lines if line.cells[0] == "test acc")
    assert line.cells == ("test acc", "97.00", "98.00", "+0.01")
    assert sheet.title == "tiny: standard heads 1 seed 0, trained twice"
    assert request.again().finished == request.finished


def test_a_cell_that_was_not_finished_stands_alone(tmp_path, monkeypatch):
    request = fill(tmp_path, [])

    def once(plan, keys, folder, *_, **__):
        fill(folder, cells())

    monkeypatch.setattr(twice_module, "run_cells", once)
    sheet = retrain(request, KEY, Execution(), console=Console(file=io.StringIO()), command="")
    assert {line.cells[1] + line.cells[3] for line in sheet.lines} == {""}
    assert all(line.cells[2] for line in sheet.lines)


def test_a_cell_that_was_not_begun_in_time_is_reported(tmp_path, monkeypatch):
    request = fill(tmp_path, cells())
    monkeypatch.setattr(twice_module, "run_cells", lambda *_, **__: [])
    with pytest.raises(DataError, match="standard heads 4 seed 0 was not begun in time; give more"):
        retrain(request, KEY, Execution(), console=Console(file=io.StringIO()), command="")


def test_a_cell_that_cannot_be_replaced_is_reported(tmp_path):
    request = fill(tmp_path, cells())
    cell_path(tmp_path / "again", *KEY).mkdir(parents=True)
    with pytest.raises(DataError, match="cannot replace .*standard-h4-s0.json .* choose another"):
        retrain(request, KEY, Execution(), console=Console(file=io.StringIO()), command="")


def test_a_cell_of_no_row_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="tiny has no row 'gqa'; its mechanisms are standard"):
        retrain(fill(tmp_path, []), ("gqa", 4, 0), Execution(), console=Console(), command="")


def test_no_printed_time_is_negative_and_none_is_ranked_inside_the_noise(tmp_path):
    """The class of "12.8 s ± 27.0 s (4)": whatever the times of an epoch are."""
    random = np.random.default_rng(0)
    for trial in range(40):
        seeds, spread = 2 + trial % 4, (0.01, 1.0, 3.0)[trial % 3]
        table = replace(TINY, seeds=seeds)
        timed = [
            replace(cell, seconds_per_epoch=float(np.exp(random.normal(2, spread))))
            for cell in cells(seeds=seeds)
        ]
        for group in (rows(table, timed, heads=(number,)) for number in (1, 4)):
            figures = [row.figures["seconds_per_epoch"] for row in group]
            shown = [EPOCH.write(f.ours.mean) + EPOCH.interval(f.ours) for f in figures]
            assert not any("-" in text or "±" in text for text in shown)
            for figure in figures:
                ends = figure.ours.low, figure.ours.high
                assert ends == (None, None) if seeds < 3 else 0 < ends[0] < ends[1]
                others = [f.ours for f in figures if f is not figure]
                apart = seeds > 2 and all(o.high < ends[0] or o.low > ends[1] for o in others)
                assert (figure.rank is not None) is apart


def test_figures_rest_on_what_the_published_verdict_rests_on(tmp_path):
    """A figure's intervals are the verdict's: answers, rows and floors are not left behind."""
    results = published(table("v2-imdb")).results
    assert results.data is not None
    drawn = _results(cell_table(request_cells(table("v2-imdb"), out=tmp_path / "run")))
    by_key = {(c.mechanism, c.num_heads): c.difference for c in judge(drawn).comparisons}
    for comparison in judge(results).comparisons:
        assert by_key[comparison.mechanism, comparison.num_heads] == comparison.difference


def test_figures_hold_the_further_seeds_of_standard(tmp_path):
    """A table of the atlas with fewer seeds asked for than Standard has is drawn all the same."""
    asked = request_cells(atlas_table("atlas-imdb-300k"), seeds=2, out=tmp_path / "run")
    cells = _results(cell_table(asked)).cells
    standard = [cell.seed for cell in cells if cell.mechanism == BASELINE]
    assert standard == list(range(2 + asked.table.further))
