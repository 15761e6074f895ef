"""The report: tables, figures as PNG, one self-contained page."""

from suffice.comparison.report.page import page, write_report
from suffice.comparison.report.plots import difference_plot, draw_figures, save_figures
from suffice.comparison.report.tables import tables

__all__ = [
    "difference_plot",
    "draw_figures",
    "page",
    "save_figures",
    "tables",
    "write_report",
]
