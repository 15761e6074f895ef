"""The report: tables in the terminal, figures as PNG, one self-contained page."""

from suffice.measure.report.figures import draw_figures, save_figures
from suffice.measure.report.page import page
from suffice.measure.report.table import print_report, tables
from suffice.measure.report.write import write_report

__all__ = ["draw_figures", "page", "print_report", "save_figures", "tables", "write_report"]
