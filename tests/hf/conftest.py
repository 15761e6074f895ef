"""Without the extra there is nothing to test here."""

from __future__ import annotations

import importlib.util

import pytest

ABSENT = [name for name in ("transformers", "accelerate") if not importlib.util.find_spec(name)]


def pytest_ignore_collect(collection_path, config):
    """Read no test file whose imports would fail; `test_absent.py` says so."""
    if collection_path.name == "upstream":  # runs in another tree, see its __main__
        return True
    if ABSENT and collection_path.name != "test_absent.py" and collection_path.suffix == ".py":
        return collection_path.name.startswith("test_")
    return None


@pytest.fixture(scope="session", autouse=True)
def quiet():
    """Show no progress of transformers, and touch no network."""
    if not ABSENT:
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
