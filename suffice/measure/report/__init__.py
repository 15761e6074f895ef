"""The report: tables, figures as PNG, one self-contained page."""

from suffice.measure.report.page import page, write_report
from suffice.measure.report.plots import difference_plot, draw_figures, save_figures
from suffice.measure.report.tables import tables

__all__ = [
    "difference_plot",
    "draw_figures",
    "page",
    "save_figures",
    "tables",
    "write_report",
]
