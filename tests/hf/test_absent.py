"""The extra is optional: refused with a sentence where absent, and never loaded unasked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from suffice.errors import ConfigError
from suffice.hf.needed import check_installed
from tests.hf.conftest import ABSENT


def test_the_extra_is_here():
    if ABSENT:
        pytest.skip(f"the extra hf is not installed: {', '.join(ABSENT)}")
    assert check_installed("transformers") is None


def test_an_absent_library_is_named():
    with pytest.raises(ConfigError, match=r"needs no_such_library, .* pip install 'suffice\[hf\]'"):
        check_installed("torch", "no_such_library")


def test_import_suffice_does_not_import_transformers():
    code = "import suffice, sys; print('transformers' in sys.modules, 'suffice.hf' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
