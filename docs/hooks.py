"""What the site says of its version, read from the package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def on_config(config: Any) -> Any:
    """Put version, licence and changes below every page."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "suffice/__init__.py").read_text())[1]
    repository = config.extra["repository"]
    config.copyright = (
        f'suffice {version} &middot; <a href="{repository}/blob/main/LICENSE">Apache 2.0</a> '
        f'&middot; <a href="{repository}/blob/main/CHANGELOG.md">Changes</a> &middot; '
        f'<a href="{repository}">Source</a>'
    )
    return config
