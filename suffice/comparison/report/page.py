"""The report as one page: no scripts, no other files, light and dark."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice.comparison.disagreements import Disagreement, read_disagreements
from suffice.comparison.report.plots import FIGURES, difference_plot, draw_figures, save_figures
from suffice.comparison.report.sheet import Sheet
from suffice.comparison.report.tables import Tables, seconds, size, tables
from suffice.comparison.results import Results
from suffice.comparison.sentence import notes, sentence
from suffice.comparison.verdict import ALPHA, Verdict
from suffice.comparison.winner import Snippet, snippets
from suffice.data.survey import Survey
from suffice.utils.canvas import colours_by_theme, png, svg
from suffice.utils.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_report(results: Results, verdict: Verdict, folder: Path) -> Path:
    """Write report.html, and its figures as PNG files; return the page's file."""
    figures = draw_figures(results, verdict)
    save_figures(figures, folder)
    path = folder / "report.html"
    rows = read_disagreements(folder)
    content = page(results, verdict, figures, usage=snippets(folder), disagreements=rows)
    write_atomic(path, content)
    return path


def page(
    results: Results,
    verdict: Verdict,
    figures: dict[str, Figure],
    *,
    usage: Sequence[Snippet] = (),
    disagreements: Sequence[Disagreement] = (),
) -> str:
    from jinja2 import Environment, PackageLoader

    own_files = results.task in ("table", "image_folder")  # whose names begin the title
    environment = Environment(
        loader=PackageLoader("suffice.comparison.report", "."),
        autoescape=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html.j2").render(
        results=results,
        verdict=verdict,
        title=results.title.partition(", ")[::2] if own_files else (results.title, ""),
        sentence=sentence(verdict, results),
        notes=notes(verdict, results),
        usage=usage,
        disagreements=disagreements,
        data={} if results.data is None else _data_facts(results.data),
        figures=[
            (plot := FIGURES[name], inline_svg(figure, name, f"{plot.title}. {plot.caption}"))
            for name, figure in figures.items()
        ],
        tables=tables(results, verdict),
        margin=verdict.metric.margin(verdict.margin),
        alpha=ALPHA,
        origin=_origin(results),
        light=colour_variables(dark=False),
        dark=colour_variables(dark=True),
    )


def _data_facts(survey: Survey) -> dict[str, str]:
    facts = {"rows": ", ".join(f"{count:,} {part}" for part, count in survey.rows.items())}
    if survey.classes:
        counts = zip(survey.classes, survey.counts["test"], strict=True)
        facts["test rows of each class"] = ", ".join(f"{name}: {n:,}" for name, n in counts)
        facts["one point of accuracy"] = f"{survey.rows_of_a_point:.3g} test rows"
    if survey.repeated is not None and survey.overlap is not None:
        repeated, overlap = sum(survey.repeated.values()), sum(survey.overlap.values())
        read = " after tokenisation" if survey.read is not None else ""
        facts[f"duplicates{read}"] = f"{repeated:,} within parts, {overlap:,} across"
    if survey.cut is not None:
        facts["words of a text"] = (
            f"{survey.median:.0f} (median), {survey.longest:,} in the longest; the last "
            f"{survey.read} are read, {survey.cut:.0%} are longer"
        )
    if survey.notes:
        facts["notes"] = "; ".join(survey.notes)
    shares = {f'majority class "{survey.majority_class}"': survey.majority, "random": survey.chance}
    known = [f"{name} {share:.1%}" for name, share in shares.items() if share is not None]
    return facts | ({"baselines": ", ".join(known)} if known else {})


def _origin(results: Results) -> dict[str, Any]:
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
    return facts


LEAST, MOST = 76, 128  # pixels of an inch of a figure, whose smallest text is 8/72 of it high


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Return a figure as one svg element.

    Its identifiers start with its name, as several share a page. Its colours are the variables of
    `colour_variables`, which follow the page's theme.
    """
    text = svg(figure, name, transparent=True)
    drawing = text[text.index("<g id=") :]
    width, height = figure.get_size_inches()
    sizes = f"min-width: {LEAST * width:g}px; max-width: {MOST * width:g}px"
    box = f'viewBox="0 0 {72 * width:g} {72 * height:g}" style="{sizes}"'

    def adapt(match: re.Match[str]) -> str:
        tag = re.sub(r'(\bid="|\bxlink:href="#|\burl\(#)', rf"\g<1>{name}-", match.group())
        return re.sub(r"#[0-9a-f]{6}\b", lambda colour: f"var({_variable(colour.group())})", tag)

    # only tags are changed: between them is text, such as a mechanism's name
    drawing = re.sub(r"<[^>]*>", adapt, drawing)
    return f'<svg role="img" aria-label="{escape(description)}" {box}>\n{drawing}'


def colour_variables(*, dark: bool) -> str:
    """Return the css variables of all colours, for a light or a dark page."""
    return " ".join(
        f"{_variable(light)}: {night if dark else light};"
        for light, night in colours_by_theme().items()
    )


def _variable(colour: str) -> str:
    return f"--c{colour[1:]}"


def notebook_html(results: Results, verdict: Verdict) -> str:
    """Return the verdict on a comparison as HTML that needs no style, script or file."""
    picture = b64encode(png(difference_plot(results, verdict))).decode()
    points = "".join(f"<li>{escape(note)}</li>" for note in notes(verdict, results))
    return (
        f"<p><strong>{escape(sentence(verdict, results))}</strong></p>\n"
        f"{_table(Tables(results, verdict).differences())}\n"
        f'<img alt="differences to {escape(verdict.baseline)}" width="560" '
        f'src="data:image/png;base64,{picture}">\n<ul>{points}</ul>'
    )


def _table(sheet: Sheet) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in sheet.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line.cells)}</tr>"
        for line in sheet.lines
    )
    caption = f"<caption>{escape(sheet.caption)}</caption>" if sheet.caption else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
