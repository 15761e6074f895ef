"""Style, scripts and facts put into one HTML file."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from suffice.errors import ConfigError
from suffice.files import replacing
from suffice.patterns import Pattern
from suffice.studio import drawings
from suffice.studio.calculator import ARTICLE, KNOWN, LENGTHS, Composition, reported
from suffice.studio.calculator.answer import KERNELS, MIXINGS, PROJECTIONS
from suffice.studio.calculator.published import FORMULA, SOURCE
from suffice.view import expression
from suffice.view.drawing import COLOURS, FREE


def facts(served: bool) -> dict[str, Any]:
    """Return them as plain data."""
    return {"served": served, "calculator": _calculator(), "patterns": _patterns()}


def _calculator() -> dict[str, Any]:
    return {
        "empty": Composition().to_json(),
        "lengths": list(LENGTHS),
        "tensors": _tensors(),
        "known": [
            {"model": known.model.to_json(), "length": known.length, "source": known.source}
            for known in KNOWN
        ],
        "article": {
            "source": SOURCE,
            "formula": FORMULA,
            "model": ARTICLE.to_json(),
            "claims": [claim.to_json() for claim in reported()],
        },
    }


def _tensors() -> dict[str, int]:
    """Return how many tensors a layer keeps for each token, by what it is made of."""
    found = {}
    for projections, kernel, mixing, rotary in product(
        PROJECTIONS, KERNELS, MIXINGS, (False, True)
    ):
        spec = Composition(
            d_model=2,
            num_heads=1,
            projections=projections,
            kernel=kernel,
            mixing=mixing,
            mixing_size=int(mixing != "NoMixing"),
            rotary=rotary,
        ).spec()
        words = [projections, kernel, mixing, *["rotary"] * rotary]
        found[" ".join(words)] = spec.cost(1).state_numbers // spec.widths.kv
    return found


def _patterns() -> dict[str, Any]:
    return {
        "kinds": {name: _fields(kind) for name, kind in Pattern.table.items()},
        "mechanisms": drawings.sketches(),
        "lengths": list(drawings.LENGTHS),
        "colours": COLOURS,
        "free": FREE,
    }


def _fields(kind: type) -> list[list[Any]]:
    """Return the name of each field, and its default where it has one; patterns as code."""
    found = []
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING:
            found.append([field.name])
        else:
            value = field.default
            found.append([field.name, expression(value) if isinstance(value, Pattern) else value])
    return found


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


def export(folder: Path | str) -> Path:
    """Write the static page into a folder and return its file.

    It opens from a disk or inside another page, loads nothing and computes everything itself.

    Args:
        folder: made where it is absent.

    Raises:
        ConfigError: if it cannot be written.
    """
    path = Path(folder) / "index.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(bundle(served=False).html, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path} ({error.strerror or error}); give a folder that can be written."
        ) from error
    return path
