"""The page: style, scripts and facts in one HTML file."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import inspect
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
from suffice.presets import PRESETS, preset, takes_length
from suffice.studio.calculator import ENCODERS, KERNELS, LENGTHS, MIXINGS, DecoderSizes
from suffice.studio.published import ARTICLE, FORMULA, PUBLISHED_MODELS, SOURCE, article_claims
from suffice.view import expression, instead
from suffice.view.drawing import COLOURS, FREE

STYLES = ("colours", "page", "fields", "results", "chart", "patterns", "compare", "attention")
SHARED = ("element", "numbers", "tabs", "fields", "chart")
CALCULATOR = tuple(
    f"calculator/{n}" for n in ("formula", "state", "form", "results", "article", "tab")
)
PATTERNS = tuple(
    f"patterns/{n}" for n in ("kinds", "read", "drawn", "reach", "canvas", "pictures", "tab")
)
SERVED = ("ask", "compare/tradeoff", "compare/tab", "attention/maps", "attention/tab", "advise/tab")

PATTERN_LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
D_MODEL, HEADS = 64, 4  # of the mechanisms whose patterns are drawn


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The page, and its content security policy: its own script and style, nothing else."""

    html: str
    policy: str


@cache
def bundle(served: bool) -> Bundle:
    """Return the page; only the served one has the tabs that need this program."""
    scripts = (*SHARED, *CALCULATOR, *PATTERNS, *(SERVED if served else ()), "start")
    style = "\n".join(_read(f"css/{name}.css") for name in STYLES)
    script = "\n".join(_read(f"js/{name}.js") for name in scripts)
    script = f'\n"use strict";\n(() => {{\n{script}\n}})();\n'
    patterns = {
        "kinds": {name: _fields(kind) for name, kind in Pattern.table.items()},
        "mechanisms": sketches(),
        "lengths": list(PATTERN_LENGTHS),
        "colours": COLOURS,
        "free": FREE,
    }
    facts = {"calculator": _calculator_facts(), "patterns": patterns}
    facts_json = json.dumps(facts, separators=(",", ":"), allow_nan=False)
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    if served:
        policy += "; connect-src 'self'"
    parts = {
        "policy": f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "style": style,
        "facts": facts_json.replace("<", "\\u003c"),  # so that it cannot end its element
        "script": script,
    }
    html = _read("index.html")
    for name, content in parts.items():
        html = html.replace(f"{{{{{name}}}}}", content, 1)
    return Bundle(html=html, policy=policy)


def export(folder: Path | str) -> Path:
    """Write the static page into a folder and return its file.

    It loads nothing and computes everything itself, so it opens from a disk as well.

    Args:
        folder: created if absent.

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


def _calculator_facts() -> dict[str, Any]:
    return {
        "empty": DecoderSizes().to_json(),
        "lengths": list(LENGTHS),
        "tensors": _cached_tensors(),
        "known": [
            {"model": known.model.to_json(), "length": known.length, "source": known.source}
            for known in PUBLISHED_MODELS
        ],
        "article": {
            "source": SOURCE,
            "formula": FORMULA,
            "model": ARTICLE.to_json(),
            "claims": [claim.to_json() for claim in article_claims()],
        },
    }


def _cached_tensors() -> dict[str, list[int]]:
    """Return how many tensors a layer caches, mixed and unmixed, by its composition."""
    counts = {}
    for encoder, kernel, mixing, rotary in product(ENCODERS, KERNELS, MIXINGS, (False, True)):
        spec = DecoderSizes(
            d_model=2,
            num_heads=1,
            projections=encoder,
            kernel=kernel,
            mixing=mixing,
            mixing_size=int(mixing != "NoMixing"),
            rotary=rotary,
        ).spec()
        key = " ".join([encoder, kernel, mixing, *["rotary"] * rotary])
        counts[key] = [len(spec.cached_widths), len(spec.unmixed_widths)]
    return counts


@cache
def sketches() -> dict[str, dict[str, Any]]:
    """Return each mechanism's summary, and its patterns by "LENGTH" and "LENGTH causal".

    A pattern is code ("expression") with the number of "keys" the kernel reads, the Python "line"
    of the spec, "notes" on what a drawing of pairs does not show, and whether the kernel computes
    "pairs" at all. Lengths and causal forms that a mechanism does not have are absent.
    """
    by_name = {}
    for name, build in PRESETS.items():
        summary = (inspect.getdoc(build) or "").split("\n\n")[0]
        by_name[name] = {"summary": " ".join(summary.split()), "sketches": _sketches_of(name)}
    return by_name


def _sketches_of(name: str) -> dict[str, dict[str, Any]]:
    by_key = {}
    for length, causal in product(PATTERN_LENGTHS, (False, True)):
        options = {"length": length} if takes_length(name) else {}
        try:
            spec = preset(name, D_MODEL, HEADS, **options, causal=causal)
        except ConfigError:  # the mechanism is always causal, or never
            continue
        arguments = [f"{key}={value}" for key, value in options.items()] + ["causal=True"] * causal
        line = ", ".join([f'"{name}"', str(D_MODEL), str(HEADS), *arguments])
        by_key[f"{length}{' causal' * causal}"] = {
            "expression": expression(spec.pattern),
            "keys": spec.mixing.reads(length),
            "line": f"suffice.preset({line})",
            "notes": list(instead(spec, length)),
            "pairs": spec.kernel.weighs_pairs,
        }
    return by_key


def _fields(kind: type) -> list[list[Any]]:
    """Return the name of each field, and its default if it has one; patterns as code."""
    fields: list[list[Any]] = []
    for field in dataclasses.fields(kind):
        default = field.default
        if isinstance(default, Pattern):
            default = expression(default)
        fields.append([field.name] + [default] * (default is not dataclasses.MISSING))
    return fields


def _read(name: str) -> str:
    return resources.files("suffice.studio").joinpath("page", name).read_text("utf-8")


def _digest(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
