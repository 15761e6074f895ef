"""Results of comparisons as the page shows them: found, read, judged."""

from suffice.studio.compared.found import Found, found, read
from suffice.studio.compared.front import front
from suffice.studio.compared.told import told

__all__ = ["Found", "found", "front", "read", "told"]
