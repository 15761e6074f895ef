"""The report as one page: no scripts, no files beside it, light and dark."""

from __future__ import annotations

import re
from html import escape
from importlib import resources
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.files import write_atomic
from suffice.measure.report.canvas import style, themed
from suffice.measure.report.plots import FIGURES, draw_figures, save_figures
from suffice.measure.report.tables import Sheet, build_rows, seconds, sheets, size
from suffice.measure.results import Results
from suffice.measure.sentence import margin_points, notes, sentence
from suffice.measure.verdict import ALPHA, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


NOTHING = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def inline(figure: Figure, name: str, described: str) -> str:
    """Return a figure as one svg element.

    Its identifiers start with its name, so that several can share a page; its colours are the
    variables of `colour_variables`, so that they follow the page's theme; it carries no date,
    so that equal results give equal pages.

    Args:
        figure: what to write.
        name: of the figure, a plain word.
        described: what it shows, for those who cannot see it.
    """
    import matplotlib

    stream = StringIO()
    with style():
        matplotlib.rcParams["svg.hashsalt"] = name
        figure.savefig(stream, format="svg", transparent=True, metadata=NOTHING)
    text = stream.getvalue()
    drawing = text[text.index("<g id=") :]
    width, height = figure.get_size_inches()
    box = f'viewBox="0 0 {72 * width:g} {72 * height:g}" style="max-width: {width:g}in"'
    # only tags are changed: what stands between them is text, such as a mechanism's name
    drawing = re.sub(r"<[^>]*>", lambda tag: _adapt(tag.group(), name), drawing)
    return f'<svg role="img" aria-label="{escape(described)}" {box}>\n{drawing}'


def _adapt(tag: str, name: str) -> str:
    """Make the identifiers of one tag the figure's own and its colours the page's."""
    tag = re.sub(r'(\bid="|\bxlink:href="#|\burl\(#)', rf"\g<1>{name}-", tag)
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: f"var({_variable(found.group())})", tag)


def colour_variables(*, dark: bool) -> str:
    """Return the css variables of all colours, for a light or a dark page."""
    return " ".join(
        f"{_variable(light)}: {night if dark else light};" for light, night in themed().items()
    )


def _variable(colour: str) -> str:
    """Name the variable of a colour.

    Example:
        >>> _variable("#0072b2")
        '--c0072b2'
    """
    return f"--c{colour[1:]}"


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


def write_report(results: Results, verdict: Verdict, folder: Path) -> Path:
    """Write report.html, and the same figures beside it as PNG; return the page's file.

    Args:
        results: the comparison.
        verdict: what `judge` found.
        folder: where to; made if it is missing.

    Raises:
        DataError: if a file cannot be written.
    """
    figures = draw_figures(results, verdict)
    save_figures(figures, folder)
    path = folder / "report.html"
    write_atomic(path, page(results, verdict, figures))
    return path
