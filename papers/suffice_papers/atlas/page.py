"""The tables of docs/atlas.md, and the page itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from suffice.comparison.recall import RECALL, UNSOLVED
from suffice.comparison.report.sheet import Column, Sheet, sheet_of
from suffice.comparison.sufficiency import FAILS, SUFFICES, UNDECIDED
from suffice.train.recipes import recipe
from suffice.utils.canvas import svg
from suffice.utils.files import write_atomic
from suffice_papers.atlas.averages import Average, averages
from suffice_papers.atlas.figures import figures, tasks_shown
from suffice_papers.atlas.grid import NAME, NAMES, atlas_table, label, recipe_name, settings
from suffice_papers.atlas.literature import LITERATURE
from suffice_papers.atlas.nulls import nulls
from suffice_papers.atlas.recipes import HEADS, TASKS
from suffice_papers.atlas.standings import ALPHA, MARKS, Standing, standings, standings_of
from suffice_papers.results import document, published
from suffice_papers.sheets import csv_text, markdown
from suffice_papers.tables import BASELINE


def _by_task(title: str, cell: Callable[[Standing], str], *more: Column) -> Sheet:
    rows = [row for row in standings() if row.mechanism != BASELINE]
    cells = {(row.mechanism, row.task): cell(row) for row in rows}

    def column(task: str) -> Column:
        return Column(title=task, cell=lambda name: cells.get((name, task), ""))

    names = list(dict.fromkeys(name for (name, _), text in cells.items() if text))
    columns = (Column(title="mechanism", cell=str), *map(column, tasks_shown()), *more)
    return sheet_of(title, columns, names, caption=LEGEND)


LEGEND = (
    "Recall: seeds that solve the task, with the interval of Clopper and Pearson. Real data: "
    "points of accuracy, or nats of language, above Standard, with the interval that decides. In "
    "the figure ✓ suffices or solves it; ✗ does not suffice or rarely solves it; · undecided; … "
    "fewer than three seeds; ○ Standard is not shown to have learned, or never solves it; ↑ too "
    "easy to tell; = computes what the named row does; blank: not trained."
)


def matrix() -> Sheet:
    """Return the matrix of mechanisms and tasks in words."""
    field = Column(title="what the field says", cell=lambda name: LITERATURE.get(name, ""))
    return _by_task("What suffices where", lambda row: row.words, field)


def staircase() -> Sheet:
    """Return what is solved of the recall of 8, 16 and 32 pairs, the most first."""
    names = [task for task in TASKS if TASKS[task][0] == "mqar"]
    rows = [row for row in standings() if row.task in names and not row.same_as]
    solved_by = {(row.mechanism, row.task): row.solved for row in rows}

    def rate(name: str, task: str) -> float:
        solved = solved_by.get((name, task))
        return -1.0 if solved is None else solved.count / solved.seeds

    def column(task: str) -> Column:
        def cell(name: str) -> str:
            solved = solved_by.get((name, task))
            if solved is None:
                return ""
            middle = solved.median_epochs
            after = "" if middle is None else f", after {middle:g}"
            return f"{solved.count}/{solved.seeds}{after}"

        return Column(title=task, cell=cell)

    mechanisms = {row.mechanism for row in rows}
    order = sorted(mechanisms, key=lambda name: ([-rate(name, t) for t in reversed(names)], name))
    caption = "Seeds that solve it, and the median of the epochs to do so where most do."
    columns = (Column(title="mechanism", cell=str), *map(column, names))
    return sheet_of("Staircase of recall", columns, order, caption=caption)


def average_sheet(rows: Sequence[Standing], title: str) -> Sheet:
    """Return the averages over tasks as a table."""

    def percent(average: Average) -> str:
        d = average.difference
        return f"{100 * d.mean:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]"

    return sheet_of(
        title,
        (
            Column(title="mechanism", cell=lambda a: a.mechanism),
            Column(title="tasks", cell=lambda a: str(a.tasks)),
            Column(title="mean difference, % of Standard's gain", cell=percent),
            Column(title="sd between tasks", cell=lambda a: f"{100 * a.between:.1f}"),
            Column(title="rank", cell=lambda a: f"{a.ranks[0]} to {a.ranks[1]}"),
        ),
        averages(rows),
    )


MATRIX = "matrix.csv"
MOST_NAMES = 6  # of mechanisms in a sentence
HEAD = """# The atlas: what suffices where

Every mechanism of `suffice list` that a model can have, against Standard with four heads, on six
tasks of recall and six of real data. These are small models and short trainings: larger ones and
longer ones may differ. The [last section](#how-it-was-trained) says how each was trained.
"""

HOW = """Written by `suffice reproduce atlas --publish`; a test fails when it is stale.

On tasks of recall a training ends when it is solved, so that what counts is how many seeds solve
it, of up to ten, and after how many epochs. On real data the margin is 2% of what Standard gains
over learning nothing, from up to five seeds. Each cell is judged by itself, at 95% over all the
looks that adding seeds takes; no seed is added once the verdict is clear or out of reach. The
learning rate of each mechanism is the best of three by one separate seed, on recall of 8 pairs, or
with half of the epochs on Shakespeare or MNIST; other tasks take that of the nearest. A table with
one rate for all says so."""


def found(rows: Sequence[Standing]) -> list[str]:
    """Return a line for each task: which mechanisms suffice or solve it, and how many do not."""
    lines = []
    for task in tasks_shown():
        here = {r.mechanism: r for r in rows if r.task == task and not r.same_as and r.known}
        standard = here.pop(BASELINE, None)
        names = {word: [n for n, r in here.items() if r.verdict == word] for word in MARKS}
        best = ", ".join(names[SUFFICES][:MOST_NAMES]) or "none"
        more = len(names[SUFFICES]) - MOST_NAMES
        best += f" and {more} more" if more > 0 else ""
        if standard is not None and standard.verdict == UNSOLVED:
            said = f"Standard solves it in {standard.solved}; in every seed: {best}."
        else:
            word = "solve it" if TASKS[task][0] in RECALL else "suffice"
            said = (
                f"{len(names[SUFFICES])} of {len(here)} are shown to {word} ({best}), "
                f"{len(names[FAILS])} not to; {len(names[UNDECIDED])} are undecided."
            )
        lines.append(f"- **{recipe(recipe_name(task)).title}** (`{task}`): {said}")
    return lines


def _chances(rows: Sequence[Standing]) -> str:
    """State how many cells may be decided falsely, and what is said of Standard against itself."""
    cells = [row for row in rows if not row.same_as and row.mechanism != BASELINE]
    judged = [row for row in cells if row.known and row.verdict != UNSOLVED]
    text = (
        f"{len(judged)} cells have the seeds for a verdict. If all were exactly at the margin in "
        f"truth, {ALPHA * len(judged):.1f} would be decided by chance alone, half of them as "
        "sufficient."
    )
    for null in nulls():
        text += (
            f" On {null.task} {null.seeds} seeds of Standard, drawn five against five, falsely do "
            f"not suffice in {100 * null.fails:.1f}% of the draws; made worse by exactly the "
            f"margin, they falsely suffice in {100 * null.suffices:.1f}%."
        )
    return text


def windows() -> Sheet:
    """Return how many tokens the windows have, and how far the blocks reach back with them."""

    def cell(row: Standing) -> str:
        chosen = recipe(recipe_name(row.task))
        names = {label(name): name for name in settings(chosen.model)}
        specs = chosen.specs(names[row.mechanism], HEADS)
        sizes = list(_windows(specs[0].pattern.to_json()))
        reach = len(specs) * (max(sizes, default=1) - 1) + 1
        return f"{', '.join(map(str, sizes))} ({reach} of {chosen.model.length})" if sizes else ""

    return _by_task("Windows, tokens", cell)


def _windows(pattern: Mapping[str, Any]) -> Iterator[int]:
    """Yield the sizes of the windows in the JSON form of a pattern; blocks count no tokens."""
    if pattern["name"] == "Window":
        yield pattern["size"]
    for part in pattern.get("parts", ()):
        yield from _windows(part)


def page() -> str:
    """Return docs/atlas.md for what is published now."""
    rows = standings()
    lines = [HEAD, "## What was found", "", *found(rows), ""]
    lines += [*(f"![{name}](atlas/{name}.svg)" for name in figures()), "", LEGEND, ""]
    lines += [f"Every cell in words, with its interval: [atlas/{MATRIX}](atlas/{MATRIX}).", ""]
    shown = [staircase(), windows()]
    if averages(rows):
        shown.insert(0, average_sheet(rows, "Over tasks of real data"))
    for sheet in shown:
        caption = ["", sheet.caption] if sheet.caption not in (LEGEND, "") else []
        lines += [f"## {sheet.title}", "", *markdown(sheet), *caption, ""]
    lines += ["## How it was trained", "", HOW, "", *markdown(progress_sheet())]
    return "\n".join([*lines, "", _chances(rows), ""])


def matrix_csv() -> str:
    """Return the matrix as a table for other programs."""
    sheet = matrix()
    records = [dict(zip(sheet.columns, line.cells, strict=True)) for line in sheet.lines]
    return csv_text(sheet.columns, records)


def progress_sheet() -> Sheet:
    """Return what is published of every table, and what it cost."""

    def cells(name: str) -> list[str]:
        table = atlas_table(name)
        content = published(table)
        if content is None:
            return [name, "not trained", *[""] * 5]
        results, rows = content.results, standings_of(content.results)
        seeds = Counter(cell.mechanism for cell in results.cells)
        others = [count for mechanism, count in seeds.items() if mechanism != BASELINE]
        counts = f"{min(others)} to {max(others)}; Standard {seeds[BASELINE]}"
        standard = next(row for row in rows if row.mechanism == BASELINE)
        floor = "" if standard.gain is None else f"{standard.quality.mean - standard.gain:.3f}"
        if standard.solved is not None:
            floor = f"{results.chance:.3f}" if results.chance is not None else ""
        edges = sum(one.at_edge for one in results.tuned)
        rates = f"tuned, {edges} at an edge" if results.tuned else "one for all"
        hours = sum(cell.cost_seconds for cell in results.cells)
        hours += sum({one.seconds for one in results.tuned}) if table.tuned_on == name else 0.0
        return [
            name,
            f"{len(results.cells)} trainings: {counts}",
            rates,
            f"{floor} to {standard.quality.mean:.3f}",
            f"{sum(row.improving for row in rows)} of {len(rows)}",
            str(sum(row.is_open for row in rows)),
            f"{hours / 3600:.2f}",
        ]

    titles = (
        *("table", "seeds of a row", "learning rates", "learning nothing to Standard"),
        *("still improving", "open", "CPU hours"),
    )
    columns = (
        Column(title=title, cell=lambda row, n=number: row[n])
        for number, title in enumerate(titles)
    )
    caption = "One table: suffice reproduce TABLE --run --jobs 2 --publish"
    return sheet_of("The atlas", tuple(columns), [cells(name) for name in NAMES], caption=caption)


def write_page() -> Path:
    """Write docs/atlas.md and its figures, and return the page's file."""
    path = document(f"{NAME}.md")
    standings.cache_clear()
    nulls.cache_clear()
    for stem, draw in figures().items():
        write_atomic(path.with_suffix("") / f"{stem}.svg", svg(draw(), stem))
    write_atomic(path.with_suffix("") / MATRIX, matrix_csv())
    write_atomic(path, page())
    return path
