"""The site's version, read from the package, and its changelog, that of the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]


def on_config(config: Any) -> Any:
    """Put the version above and below every page."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "suffice/__init__.py").read_text())[1]
    config.site_name = f"suffice {version}"
    repository = config.extra["repository"]
    config.copyright = (
        f'suffice {version} &middot; <a href="{repository}/blob/main/LICENSE">Apache 2.0</a> '
        f'&middot; <a href="{repository}">Source</a>'
    )
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the changelog, whose links are those of the repository's root."""
    content = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=content))
    return files
