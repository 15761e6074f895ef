"""The attention maps of a checkpoint on a text or a picture, as the page shows them."""

from suffice.studio.attended.found import checkpoints
from suffice.studio.attended.maps import Maps
from suffice.studio.attended.model import Opened, opened

__all__ = ["Maps", "Opened", "checkpoints", "opened"]
