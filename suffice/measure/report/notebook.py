"""A comparison as a notebook shows it: sentence, table of differences, picture and notes."""

from __future__ import annotations

from base64 import b64encode
from html import escape

from suffice.measure.report.canvas import png
from suffice.measure.report.plots import difference_plot
from suffice.measure.report.sheet import Sheet
from suffice.measure.report.tables import Tables
from suffice.measure.results import Results
from suffice.measure.sentence import notes, sentence
from suffice.measure.verdict import Verdict


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
