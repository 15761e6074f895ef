from tests.cli.conftest import press_at, suffice
from tests.comparison.conftest import plan

__all__ = ["plan", "press_at", "suffice"]
