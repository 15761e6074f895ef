"""The built site, and the browser that opens it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs import build
from studio.tests.conftest import browser_page, page

__all__ = ["browser_page", "page"]

ROOT = Path(build.__file__).resolve().parents[1]
BUILD = """
import sys
from mkdocs.commands.build import build
from mkdocs.config import load_config
build(load_config("mkdocs.yml", docs_dir=sys.argv[1], site_dir=sys.argv[2], strict=True))
"""  # mkdocs build, on staged pages of the test


@pytest.fixture(scope="package")
def site(tmp_path_factory):
    """The folder of the built site; skips where its generator is not installed."""
    pytest.importorskip("material", reason="the group docs is not installed")
    pytest.importorskip("mkdocstrings", reason="the group docs is not installed")
    staged, folder = tmp_path_factory.mktemp("staged") / "docs", tmp_path_factory.mktemp("site")
    build.stage(staged)
    result = subprocess.run(
        [sys.executable, "-c", BUILD, str(staged), str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    return folder
