"""A page to look at: what attention keeps, sees, costs and how well it does.

`served` runs it on this machine alone; `export` writes the part that needs no program.
"""

from suffice.studio.folders import Folders
from suffice.studio.page.bundle import export
from suffice.studio.server import Served, served

__all__ = ["Folders", "Served", "export", "served"]
