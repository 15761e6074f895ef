"""A page that shows what attention caches, attends to and costs, and how well it does.

`served` runs it for this machine alone; `export` writes the part that needs no program.
"""

from suffice.studio.bundle import export
from suffice.studio.folders import Folders
from suffice.studio.server import Served, served

__all__ = ["Folders", "Served", "export", "served"]
