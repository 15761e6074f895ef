"""The page: style, scripts and facts in one HTML file."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import inspect
import json
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from itertools import product
from os.path import commonprefix
from pathlib import Path
from typing import Any

from suffice.choose.fits import table
from suffice.encoders import Efficient, Latent, Optimised, Standard
from suffice.errors import ConfigError, DataError
from suffice.kernels import Elu, Softmax
from suffice.mixing import Alignment, NoMixing, ToeplitzAlignment
from suffice.models.configurations import published
from suffice.patterns import Causal, Pattern
from suffice.positions import NoPosition, Position, Rope
from suffice.presets import PRESETS, TITLES, preset, takes_length
from suffice.spec import AttentionSpec
from suffice.utils.canvas import COLOURS as COLOURS_OF_SERIES
from suffice.utils.files import replacing
from suffice.view import expression, flow, flow_svg, instead
from suffice.view.catalogue import SEGMENTS_DRAWN, WITH_SEGMENTS, drawn_spec
from suffice.view.drawing import COLOURS, FREE, PAINTED
from suffice.view.flow import CACHED, KINDS
from suffice_studio.comparisons import PACKAGE, describe, list_comparisons, read
from suffice_studio.folders import Folders
from suffice_studio.steps import MAX_TOKENS, MIN_TOKENS, TEXT, prepared

STYLES = ("colours", "page", "fields", "results", "chart")
STYLES += ("patterns", "steps", "compare", "attention")  # of the tabs
SHARED = ("element", "numbers", "address", "tabs", "fields", "chart", "save", "latest")
CALCULATOR = tuple(
    f"calculator/{n}"
    for n in ("formula", "state", "bits", "config", "form", "results", "article", "tab")
)
PATTERNS = tuple(
    f"patterns/{n}"
    for n in ("kinds", "read", "drawn", "reach", "canvas", "pictures", "flow", "layer", "tab")
)
STEPS = ("steps/cells", "steps/draw", "steps/tab")
COMPARE = ("compare/tradeoff", "compare/tab")
SERVED = ("ask", *COMPARE, "attention/maps", "attention/tab")
CARRIED = ("answers", *COMPARE)

MARK, MARKED = "<title>suffice studio</title>", 1 << 14  # what a page of ours has at its beginning
CURVE_LENGTHS = tuple(1 << n for n in range(7, 21))  # tokens
ENCODERS = (Standard(), Optimised(), Efficient(), Latent())
KERNELS = (Softmax(), Elu())
MIXINGS = (NoMixing(), Alignment(1), ToeplitzAlignment(1))
POSITIONS: tuple[Position, ...] = (NoPosition(), Rope())
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
    return _bundle(SERVED, {}, connects=True) if served else carrying(Folders())


def carrying(folders: Folders) -> Bundle:
    """Return the page that needs no program: it carries the comparisons of the folders."""
    carried = answers(folders) | {_question("steps", asked): told for asked, told in prepared()}
    plain = json.dumps(carried, separators=(",", ":"), allow_nan=False).encode()
    packed = base64.b64encode(gzip.compress(plain, mtime=0)).decode()
    return _bundle(CARRIED, {"answers": packed}, connects=False)


def answers(folders: Folders) -> dict[str, Any]:
    """Return what the page asks about comparisons, by question.

    A folder's comparisons are judged by every cost, those of the package by FLOPs.
    """
    listed = [one for one in list_comparisons(folders.results) if one.finished]
    found: dict[str, Any] = {}
    readable = []
    for one in listed:
        try:
            results = read(folders.results, one.root, one.name)
        except DataError:  # a folder may hold damaged ones
            continue
        readable.append(one)
        described = describe(results)
        costs = ["flops"] if one.root == PACKAGE else described["costs"]
        for cost in costs:
            content = described if cost == described["cost"] else describe(results, cost)
            question = {"root": one.root, "name": one.name, "cost": cost}
            found[_question("comparison", question)] = {**content, "costs": costs}
    found[_question("comparisons", {})] = {"comparisons": [asdict(one) for one in readable]}
    return found


def _question(name: str, request: dict[str, Any]) -> str:
    return f"{name} {json.dumps(request, separators=(',', ':'), ensure_ascii=False)}"


def _bundle(extra: tuple[str, ...], facts: dict[str, Any], *, connects: bool) -> Bundle:
    scripts = (*SHARED, *CALCULATOR, *PATTERNS, *STEPS, *extra, "start")
    style = "\n".join([_palette(), *(_read(f"page/css/{name}.css") for name in STYLES)])
    script = "\n".join(_read(f"page/js/{name}.js") for name in scripts)
    script = f'\n"use strict";\n(() => {{\n{script}\n}})();\n'
    patterns = {
        "kinds": {name: _fields(kind) for name, kind in Pattern.table.items()},
        "mechanisms": sketches(),
        "lengths": list(PATTERN_LENGTHS),
        "colours": COLOURS,
        "free": FREE,
        "painted": PAINTED,
        "flows": {kind: words for kind, (words, *_) in KINDS.items()} | {"cached": CACHED},
    }
    steps = {"text": TEXT, "fewest": MIN_TOKENS, "most": MAX_TOKENS}
    facts = {"calculator": _calculator_facts(), "patterns": patterns, "steps": steps, **facts}
    facts_json = json.dumps(facts, separators=(",", ":"), allow_nan=False)
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    if connects:
        policy += "; connect-src 'self'"
    parts = {
        "policy": f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "style": style,
        "facts": facts_json.replace("<", "\\u003c"),  # so that it cannot end its element
        "script": script,
    }
    html = _read("page/index.html")
    for name, content in parts.items():
        html = html.replace(f"{{{{{name}}}}}", content, 1)
    return Bundle(html=html, policy=policy)


def _palette() -> str:
    light, dark = (
        "".join(f"--series-{n}:{pair[theme]};" for n, pair in enumerate(COLOURS_OF_SERIES, 1))
        for theme in (0, 1)
    )
    rules = []
    for n in range(1, len(COLOURS_OF_SERIES) + 1):
        colour = f"var(--series-{n})"
        rules.append(f".line.series-{n},.bar.series-{n}{{stroke:{colour}}}")
        rules.append(f".point.series-{n},.dot.series-{n},.head-{n}{{fill:{colour}}}")
        rules.append(f".swatch.series-{n}{{background:{colour}}}")
    return f":root{{{light}}}\n@media(prefers-color-scheme:dark){{:root{{{dark}}}}}\n" + "\n".join(
        rules
    )


def export(folder: Path | str, folders: Folders | None = None) -> Path:
    """Write the static page into a folder and return its file.

    It loads nothing and computes everything itself, so it opens from a disk and from any host.

    Args:
        folder: path of the folder, created if absent.
        folders: folders whose comparisons it carries, besides those of the package.

    Raises:
        ConfigError: if it cannot be written.
    """
    path = Path(folder) / "index.html"
    if path.is_file() and MARK not in path.read_text("utf-8", errors="replace")[:MARKED]:
        raise ConfigError(f"{path} is another page, and would be replaced; give another folder.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(
                carrying(folders or Folders()).html, encoding="utf-8", newline="\n"
            )
    except OSError as error:
        raise ConfigError(
            f"cannot write {path} ({error.strerror or error}); give a folder that can be written."
        ) from error
    return path


def _calculator_facts() -> dict[str, Any]:
    """Return a decoder's default sizes, published models and an article's claims.

    The page counts from them; what a layer caches for each token comes from its spec.
    """
    facts = table("calculator")
    shown = [row for row in published() if "title" in row]
    known = [{key: row.get(key) for key in ("title", "config", "also")} for row in shown]
    return {
        "empty": facts["defaults"],
        "lengths": list(CURVE_LENGTHS),
        "tensors": _cached_tensors(),
        "families": table("families"),
        "known": known,
        "article": facts["article"],
    }


def _cached_tensors() -> dict[str, list[int]]:
    counts = {}
    for values in product(ENCODERS, KERNELS, MIXINGS, POSITIONS):
        encoder, kernel, mixing, position = values
        spec = AttentionSpec(
            d_model=2,
            num_heads=1,
            pattern=Causal(),
            encoder=encoder,
            kernel=kernel,
            mixing=mixing,
            position=position,
        )
        names = [type(value).__name__ for value in (encoder, kernel, mixing)]
        key = " ".join([*names, *["rotary"] * (position == Rope())])
        counts[key] = [len(spec.cached_widths), len(spec.unmixed_widths)]
    return counts


@cache
def sketches() -> dict[str, dict[str, Any]]:
    """Return each mechanism's name, summary, data flows, and patterns.

    The keys of the patterns are "LENGTH" and "LENGTH causal", those of the flows as `_flows_of`.

    A pattern is code ("expression") with the number of "keys" the kernel reads, the Python "line"
    of the spec, "notes" on what a drawing of pairs does not show, and whether the kernel computes
    "pairs" at all. Lengths and causal forms that a mechanism does not have are absent.
    """
    by_name = {}
    for name, build in PRESETS.items():
        summary = (inspect.getdoc(build) or "").split("\n\n")[0]
        by_name[name] = {
            "title": TITLES[name],
            "summary": " ".join(summary.split()),
            "flows": _flows_of(name),
            "sketches": _sketches_of(name),
        }
    return by_name


def _flows_of(name: str) -> dict[str, Any]:
    """Return the data flow by "" and " causal".

    The first is the whole SVG; of the other only the "part" that replaces its "start" to "end".
    """
    flows: dict[str, Any] = {}
    for causal in (False, True):
        try:
            spec = drawn_spec(name, D_MODEL, HEADS, length=D_MODEL, causal=causal)
        except ConfigError:  # the mechanism is always causal, or never
            continue
        drawing = flow_svg(flow(spec, D_MODEL), TITLES[name], standalone=False)
        key = " causal" * causal
        flows[key] = _changed(next(iter(flows.values())), drawing) if flows else drawing
    return flows


def _changed(first: str, other: str) -> dict[str, Any]:
    start = len(commonprefix([first, other]))
    shared = len(commonprefix([first[start:][::-1], other[start:][::-1]]))
    return {"start": start, "end": len(first) - shared, "part": other[start : len(other) - shared]}


def _sketches_of(name: str) -> dict[str, dict[str, Any]]:
    by_key = {}
    for length, causal in product(PATTERN_LENGTHS, (False, True)):
        options = {"length": length} if takes_length(name) else {}
        if name in WITH_SEGMENTS:
            options["segment"] = max(1, length // SEGMENTS_DRAWN)
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
            "pairs": spec.lane == "pairs",
        }
    return by_key


def _fields(kind: type) -> list[list[Any]]:
    fields: list[list[Any]] = []
    for field in dataclasses.fields(kind):
        default = field.default
        if isinstance(default, Pattern):
            default = expression(default)
        fields.append([field.name] + [default] * (default is not dataclasses.MISSING))
    return fields


def _read(name: str) -> str:
    return resources.files("suffice_studio").joinpath(name).read_text("utf-8")


def _digest(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
