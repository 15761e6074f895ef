"""The studio: a page that shows the cache, the maps, the cost and the quality of attention.

`served` runs it for this machine alone; `export` writes the part that needs no program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffice.utils import ByName, attributes

if TYPE_CHECKING:
    from suffice_studio.bundle import export
    from suffice_studio.folders import Folders
    from suffice_studio.server import Served, served

__all__ = ["Folders", "Served", "export", "served"]
_NAMES = {"bundle": ("export",), "folders": ("Folders",), "server": ("Served", "served")}
__getattr__ = attributes(__name__, ByName.of(__name__, _NAMES))
