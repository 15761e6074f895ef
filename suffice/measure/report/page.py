"""The report as one page: no scripts, no files beside it, light and dark."""

from __future__ import annotations

from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from suffice.measure.report.figures import FIGURES
from suffice.measure.report.numbers import seconds, size
from suffice.measure.report.rows import build_rows
from suffice.measure.report.sheets import Sheet, sheets
from suffice.measure.report.svg import colour_variables, inline
from suffice.measure.results import Results
from suffice.measure.sentence import margin_points, notes, sentence
from suffice.measure.verdict import ALPHA, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def page(results: Results, verdict: Verdict, figures: dict[str, Figure]) -> str:
    """Return the whole report as one html text.

    Args:
        results: the comparison.
        verdict: what `judge` found.
        figures: what `draw_figures` drew.
    """
    tables = [
        _table(sheet)
        for sheet in sheets(results, verdict, build_rows(results, verdict))
        if sheet.lines
    ]
    plots = [_figure(name, figure) for name, figure in figures.items()]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            _head(results),
            "<body>",
            "<main>",
            _opening(results, verdict),
            _section("figures", "Figures", plots),
            _section("tables", "Tables", tables),
            _section("reading", "How to read this", [_reading(results, verdict)]),
            _section("origin", "What it was measured with", [_origin(results)]),
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _head(results: Results) -> str:
    """Write title and style."""
    css = resources.files("suffice.measure.report").joinpath("page.css").read_text("utf-8")
    return "\n".join(
        [
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(results.title)} · suffice</title>",
            "<style>",
            f":root {{ {colour_variables(dark=False)} }}",
            "@media (prefers-color-scheme: dark) {",
            f":root {{ {colour_variables(dark=True)} }}",
            "}",
            css,
            "</style>",
            "</head>",
        ]
    )


def _opening(results: Results, verdict: Verdict) -> str:
    """Write what was compared, the verdict and its limits."""
    items = "\n".join(f"<li>{escape(note)}</li>" for note in notes(verdict, results))
    return "\n".join(
        [
            "<header>",
            f'<p class="kicker">suffice · {escape(results.task)} · {escape(results.recipe)}</p>',
            f"<h1>{escape(results.title)}</h1>",
            f'<p class="verdict {verdict.outcome}">{escape(sentence(verdict, results))}</p>',
            "</header>",
            '<section aria-labelledby="limits">',
            '<h2 id="limits">What is and is not established</h2>',
            f"<ul>\n{items}\n</ul>",
            "</section>",
        ]
    )


def _section(name: str, title: str, parts: list[str]) -> str:
    """Write a section with its heading."""
    heading = f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(title)}</h2>'
    return "\n".join([heading, *parts, "</section>"])


def _figure(name: str, figure: Figure) -> str:
    """Write one figure with its heading and caption."""
    plot = FIGURES[name]
    drawing = inline(figure, name, f"{plot.title}. {plot.caption}")
    caption = f"<figcaption>{escape(plot.caption)}</figcaption>"
    return f"<h3>{escape(plot.title)}</h3>\n<figure>\n{drawing}\n{caption}\n</figure>"


def _table(sheet: Sheet) -> str:
    """Write one table; it scrolls by itself where the window is narrow."""
    words = [i == 0 or column in sheet.words for i, column in enumerate(sheet.columns)]
    heads = "".join(
        f'<th scope="col"{_text(word)}>{escape(column)}</th>'
        for column, word in zip(sheet.columns, words, strict=True)
    )
    body = []
    for line in sheet.lines:
        kinds = ["paper"] * line.from_paper + ["first"] * line.starts_group
        body.append(f'<tr class="{" ".join(kinds)}">' if kinds else "<tr>")
        body.append(f'<th scope="row" class="text">{escape(line.cells[0])}</th>')
        body += [
            f"<td{_text(word)}>{escape(cell)}</td>"
            for cell, word in zip(line.cells[1:], words[1:], strict=True)
        ]
        body.append("</tr>")
    title = escape(sheet.title)
    return "\n".join(
        [
            f"<h3>{title}</h3>",
            f'<div class="scroll" role="region" tabindex="0" aria-label="{title}">',
            "<table>",
            f"<thead><tr>{heads}</tr></thead>",
            "<tbody>",
            *body,
            "</tbody>",
            "</table>",
            "</div>",
            f'<p class="caption">{escape(sheet.caption)}</p>',
        ]
    )


def _text(word: bool) -> str:
    """Mark a cell of words, which is aligned to the left."""
    return ' class="text"' if word else ""


def _reading(results: Results, verdict: Verdict) -> str:
    """Explain margin, interval, claims and ranks."""
    margin, name = margin_points(verdict.margin), escape(results.baseline)
    terms = {
        "Margin": f"How much test accuracy may be lost and still be enough: {margin} points. "
        "Another margin can give another verdict, so it is to be chosen before the results.",
        "Suffices": f"With 95% confidence the mechanism loses less than {margin} points to {name} "
        "with as many heads. It need not be better, only cheap and close enough.",
        "Does not suffice": f"With 95% confidence it loses more than {margin} points.",
        "Undecided": "The interval holds the margin. The number of further seeds is an estimate "
        "that takes mean and spread as they are now.",
        "Paired": "A seed fixes weights and data order, so mechanisms are compared seed by seed "
        "and what a seed does to all of them cancels.",
        "Better, worse": f"A claim of its own: paired t-test, two-sided, corrected for the number "
        f"of comparisons (Holm), p below {ALPHA}. No difference means none was found.",
        "Cheapest": f"Mechanisms are ordered by {verdict.by}, ties by parameters. Only one "
        f"cheaper than {name} with as many heads can be named in its place.",
        "Lines named paper": "Figures printed in the paper, from its authors' machine, software "
        "and training. They are shown for orientation and enter no test.",
    }
    items = "\n".join(f"<dt>{term}</dt><dd>{text}</dd>" for term, text in terms.items())
    return f"<dl>\n{items}\n</dl>"


def _origin(results: Results) -> str:
    """List command, seeds, machine, versions and commit."""
    seeds = sorted({cell.seed for cell in results.cells})
    facts = {
        "command": results.command,
        "started": results.started,
        "took": seconds(results.seconds),
        "seeds": ", ".join(map(str, seeds)),
        "commit": results.commit,
        **results.machine,
        **results.versions,
    }
    if isinstance(facts.get("memory_bytes"), int):
        facts["memory"] = size(facts.pop("memory_bytes"))
    items = "\n".join(
        f"<dt>{escape(str(name))}</dt><dd>{_fact(name, fact)}</dd>" for name, fact in facts.items()
    )
    return f'<dl class="facts">\n{items}\n</dl>'


def _fact(name: str, fact: object) -> str:
    """Write one fact; what is not known is said to be."""
    text = "not known" if fact is None else escape(str(fact))
    return f"<code>{text}</code>" if name in {"command", "commit"} and fact else text
