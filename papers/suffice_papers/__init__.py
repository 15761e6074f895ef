"""The tables and figures of the papers, ours next to theirs."""

from __future__ import annotations

from suffice_papers.tables import TABLES, Table, table

__all__ = ["TABLES", "Table", "table"]
