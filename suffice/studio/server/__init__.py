"""The server of the page: on this machine alone, for this machine alone."""

from suffice.studio.server.answers import answers
from suffice.studio.server.running import Served, served

__all__ = ["Served", "answers", "served"]
