"""Doctests of modules whose libraries are not installed are left out, as their tests are."""

from importlib.util import find_spec

SERVER = ["suffice/serve/app.py", "suffice/serve/server.py"]  # pip install 'suffice[serve]'
collect_ignore = SERVER if find_spec("uvicorn") is None else []
