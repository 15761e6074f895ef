"""Style, scripts and facts put into one HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from suffice.studio.page.facts import facts

STYLES = ("colours", "page", "fields", "results", "chart", "patterns", "compare", "attention")
SHARED = ("element", "numbers", "ask", "tabs", "fields", "chart")
CALCULATOR = tuple(
    f"calculator/{n}" for n in ("formula", "state", "form", "results", "article", "tab")
)
PATTERNS = tuple(
    f"patterns/{n}" for n in ("kinds", "read", "drawn", "reach", "canvas", "pictures", "tab")
)
SERVED = (
    "compare/tradeoff",
    "compare/tab",
    "attention/maps",
    "attention/tab",
    "advise/tab",
)
LAST = ("start",)


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The page.

    Args:
        html: all of it.
        policy: what a browser may load for it: its own script and style, nothing else.
    """

    html: str
    policy: str


@cache
def bundle(served: bool) -> Bundle:
    """Return the page.

    Args:
        served: whether the program answers its questions; otherwise it has the calculator and the
            patterns alone and computes them itself.
    """
    scripts = (*SHARED, *CALCULATOR, *PATTERNS, *(SERVED if served else ()), *LAST)
    style = "\n".join(_read(f"css/{name}.css") for name in STYLES)
    script = "\n".join(_read(f"js/{name}.js") for name in scripts)
    script = f'\n"use strict";\n(() => {{\n{script}\n}})();\n'
    data = _inside(facts(served))
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    if served:
        policy += "; connect-src 'self'"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    html = _read("index.html")
    parts = {"policy": meta, "style": style, "facts": data, "script": script}
    for name, content in parts.items():
        html = html.replace(f"{{{{{name}}}}}", content, 1)
    return Bundle(html=html, policy=policy)


def _read(name: str) -> str:
    return resources.files("suffice.studio.page").joinpath(name).read_text("utf-8")


def _inside(data: dict[str, Any]) -> str:
    """Return JSON that cannot end the element it stands in."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _digest(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
