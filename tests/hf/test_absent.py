"""The extra is optional: refused with a sentence where absent, and never loaded unasked."""

from __future__ import annotations

import subprocess
import sys


def test_an_absent_transformers_is_named():
    code = (
        "import importlib.util as u, sys; found = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'transformers' else found(name, *rest)\n"
        "import suffice.hf"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'suffice[hf]'" in done.stderr


def test_import_suffice_does_not_import_transformers():
    code = "import suffice, sys; print('transformers' in sys.modules, 'suffice.hf' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
