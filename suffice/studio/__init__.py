"""The studio: a page that shows the cache, the maps, the cost and the quality of attention.

`served` runs it for this machine alone; `export` writes the part that needs no program.
"""

from suffice.studio.bundle import export
from suffice.studio.folders import Folders
from suffice.studio.server import Served, served

__all__ = ["Folders", "Served", "export", "served"]
