"""The tables and figures of the papers, ours beside theirs."""

from suffice.reproduce.table import Table
from suffice.reproduce.tables import TABLES, table

__all__ = ["TABLES", "Table", "table"]
