"""Generate the pages of mechanisms and axis values, and the folder that the site is built from.

`make docs` runs it; a test compares the committed pages with its output.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from docs import catalogue
from docs.bars import bars
from docs.catalogue import GROUPS, group, mean_cost
from docs.formula import formulas, meanings
from docs.picture import picture
from suffice import AttentionSpec, __version__
from suffice.cli.show import titled
from suffice.patterns import And, Or
from suffice.presets import PRESETS, TITLES, takes_length
from suffice.spec import AXES
from suffice.utils.records import Axis
from suffice.view import drawing_of, expression, flow, flow_svg, instead, lines
from suffice.view.catalogue import SHARING, axes, describe, drawn_spec, sized, state
from suffice.view.picture import svg
from suffice_studio import export

FOLDER = Path(__file__).resolve().parent
EXAMPLES = FOLDER.parent / "examples"
SITE = FOLDER.parent / "mkdocs.yml"
CHANGELOG = FOLDER.parent / "CHANGELOG.md"
STAGED = FOLDER.parent / "build" / "docs"  # what generators of sites read
D_MODEL, HEADS = 256, 4
DRAWN = 64  # tokens
COUNTED = (256, 1024, 4096)  # tokens
PLAIN = {"Standard", "NoMixing", "NoNorm", "NoPosition", "NoPast", "Concat"}  # not listed
LINK = r"[arXiv:\1](https://arxiv.org/abs/\1)"
DRAWINGS = ("axes.svg", "bars.svg")
MADE = "<!-- written by `make docs` from the docstrings: edit those -->"


def pages() -> dict[str, str | bytes]:
    """Return every generated file by its name below docs/."""
    files: dict[str, str | bytes] = {
        "mechanisms/README.md": _index(),
        "mechanisms/gallery.md": _gallery(),
        "axes.md": _axes(),
        DRAWINGS[0]: picture(),
        DRAWINGS[1]: bars(),
        **_examples(),
    }
    for name in PRESETS:
        spec = drawn_spec(name, D_MODEL, HEADS, length=DRAWN)
        files[f"mechanisms/{name}.md"] = _page(name, spec)
        files[f"mechanisms/{name}.svg"] = svg(drawing_of(spec, DRAWN), titled(name, spec, DRAWN))
        files[f"mechanisms/{name}-flow.svg"] = flow_svg(flow(spec, DRAWN), TITLES[name])
    return {
        name: re.sub(r"arXiv:(\d{4}\.\d{4,5})", LINK, content)
        if isinstance(content, str) and name.endswith(".md")
        else content
        for name, content in files.items()
    }


def stage(folder: Path = STAGED) -> None:
    """Write what a generator of sites reads: the pages, the changelog and the offline studio."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    changelog = CHANGELOG.read_text("utf-8").replace("](docs/", "](")
    (folder / "changelog.md").write_text(changelog, encoding="utf-8")
    export(folder / "studio")


def configuration() -> str:
    """Return mkdocs.yml with the version and with the mechanisms in their groups."""
    groups: dict[str, list[str]] = {name: [] for name in GROUPS}
    for name in PRESETS:
        title = f'"{TITLES[name]}"' if "," in TITLES[name] else TITLES[name]
        entries = groups[group(sized(name, D_MODEL, HEADS, length=DRAWN))]
        entries.append(f"          - {title}: mechanisms/{name}.md")
    lines = [
        line
        for name, entries in groups.items()
        if entries
        for line in (f'      - "{name}":', *entries)
    ]
    text = re.sub(r"(suffice|Changelog) \d[\w.]*", rf"\1 {__version__}", SITE.read_text("utf-8"))
    begin = text.index("\n", text.index("mechanisms/README.md")) + 1
    end = text.index("  - Axis values: axes.md")
    return text[:begin] + "\n".join(lines) + "\n" + text[end:]


def write(folder: Path = FOLDER) -> None:
    """Write every page, the catalogue and mkdocs.yml; remove pages of former mechanisms."""
    files = pages()
    if folder == FOLDER:
        catalogue.write()
        SITE.write_text(configuration(), encoding="utf-8")
    for made in ("mechanisms", "examples"):
        (folder / made).mkdir(parents=True, exist_ok=True)
        for old in (folder / made).iterdir():
            if f"{made}/{old.name}" not in files:
                old.unlink()
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode("utf-8")
        (folder / name).write_bytes(data)


def _page(name: str, spec: AttentionSpec) -> str:
    about = describe(PRESETS[name])
    length = ", length=length" if takes_length(name) else ""
    return _joined(
        MADE,
        f"# {TITLES[name]}",
        *about.paragraphs,
        f'```python\nsuffice.preset("{name}", d_model, num_heads{length})\n```',
        _arguments(name),
        f"**Cost.** {about.cost}",
        f"**Source.** {about.source}.",
        "## What it computes",
        "Layer 1, which reads the keys and values of layer 0:" if name in SHARING else "",
        _formulas(spec),
        f"![Data flow of {TITLES[name]}]({name}-flow.svg)",
        "## Attention pattern",
        f"![{name}, {DRAWN} tokens]({name}.svg)",
        *instead(spec, DRAWN),
        f"`suffice show {name} --length {DRAWN}` prints this drawing for any length; `--svg FILE` "
        "writes it.",
        _characters(spec),
        "## Counts",
        f"One layer{_which(name)}, d_model {D_MODEL}, {HEADS} heads, one forward of one sample; x: "
        "relative to standard attention.",
        _counts(name),
        "## Composition",
        f"For {DRAWN} tokens:",
        "\n".join(
            f"- {axis}: `{expression(value)}`"
            for axis in AXES
            if type(value := getattr(spec, axis)).__name__ not in PLAIN
        ),
        *(_value(type(value), "###") for value in _values(spec)),
    )


def _formulas(spec: AttentionSpec) -> str:
    """Return the formulas of a layer, for KaTeX, and what their symbols mean."""
    lines = formulas(spec)
    return "\n\n".join([*(rf"\[ {line} \]" for line in lines), meanings(lines)]).rstrip()


def _examples() -> dict[str, str | bytes]:
    """Return a page for each script and notebook of examples/, with the pictures of its outputs."""
    files: dict[str, str | bytes] = {"examples/README.md": _examples_index()}
    for script in sorted(EXAMPLES.glob("*.py")):
        code = script.read_text("utf-8")
        title = script.stem.replace("_", " ").capitalize()
        files[f"examples/{script.stem}.md"] = _joined(
            MADE,
            f"# {title}",
            f"`python examples/{script.name}`",
            f"```python\n{code.rstrip()}\n```",
        )
    for notebook in sorted(EXAMPLES.glob("*.ipynb")):
        files |= _notebook(notebook)
    return files


def _examples_index() -> str:
    text = (EXAMPLES / "README.md").read_text("utf-8")
    linked = re.sub(r"`(\w+)\.(py|ipynb)` \|", r"[`\1.\2`](\1.md) |", text)
    return f"{MADE}\n\n{linked}"


def _notebook(path: Path) -> dict[str, str | bytes]:
    """Return a notebook's page, as it was last run, and its pictures."""
    blocks, files, pictures = [MADE], {}, 0
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            blocks.append(source)
            continue
        blocks.append(f"```python\n{source.rstrip(';')}\n```")  # a notebook's way to print nothing
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                pictures += 1
                name = f"{path.stem}-{pictures}.png"
                files[f"examples/{name}"] = base64.b64decode(data["image/png"])
                blocks.append(f"![what the code above draws]({name})")
            elif text := output.get("text", data.get("text/plain")):
                blocks.append(f"```text\n{''.join(text).rstrip()}\n```")
    blocks.append(f"The notebook is `examples/{path.name}`.")
    return {f"examples/{path.stem}.md": _joined(*blocks), **files}


def _arguments(name: str) -> str:
    """List the arguments of a preset; those it does not describe are those of `standard`."""
    meanings = dict(describe(PRESETS["standard"]).arguments) | dict(
        describe(PRESETS[name]).arguments
    )
    arguments = inspect.signature(PRESETS[name]).parameters
    return "\n".join(f"- `{argument}`: {meanings[argument]}" for argument in arguments)


def _characters(spec: AttentionSpec) -> str:
    drawn = lines(drawing_of(spec, DRAWN), width=100, rows=16 if spec.pattern.dense else 32)
    plain = ("".join(characters for characters, _ in line).rstrip() for line in drawn)
    head = "<details>\n<summary>as text</summary>\n"
    return "\n".join([head, "```text", *plain, "```", "", "</details>"])


def _which(name: str) -> str:
    return ", the mean of layers 0 and 1" if name in SHARING else ""


def _counts(name: str) -> str:
    rows = [
        "| tokens | parameters | FLOPs | of visible pairs | KV cache, numbers |",
        "|--:" * 5 + "|",
    ]
    for length in COUNTED:
        cost = mean_cost(name, D_MODEL, HEADS, length=length)
        base = sized("standard", D_MODEL, HEADS, length=length).cost(length)
        rows.append(
            f"| {length:,} | {cost.parameters:,} ({cost.parameters / base.parameters:.2f}x) "
            f"| {cost.flops / 1e6:,.1f}M ({cost.flops / base.flops:.2f}x) "
            f"| {cost.visible_flops / 1e6:,.1f}M | {state(cost, ' a token')} |"
        )
    return "\n".join(rows)


def _values(spec: AttentionSpec) -> Iterator[Axis]:
    """Yield one value of each class in a spec, without those of `PLAIN`."""
    by_class: dict[type, Axis] = {}
    for axis in AXES:
        for value in _inside(getattr(spec, axis)):
            by_class.setdefault(type(value), value)
    return (value for kind, value in by_class.items() if kind.__name__ not in PLAIN)


def _inside(value: object) -> Iterator[Axis]:
    """Yield an axis value and those in its fields; of `&` and `|` only their parts."""
    if isinstance(value, tuple):
        for part in value:
            yield from _inside(part)
    if isinstance(value, Axis):
        if not isinstance(value, (And, Or)):
            yield value
        for field in vars(value).values():
            yield from _inside(field)


def _value(kind: type[Axis], level: str) -> str:
    about = describe(kind)
    return _joined(
        f"{level} {kind.__name__}",
        *about.paragraphs,
        "\n".join(f"- `{name}`: {text}" for name, text in about.arguments),
        about.cost and f"Cost: {about.cost}",
        about.source and f"Source: {about.source}.",
    ).rstrip()


def _axes() -> str:
    blocks = []
    for axis, family in AXES.items():
        blocks.append(f"## {axis}")
        ours = (kind for kind in family.table.values() if kind.__module__.startswith("suffice."))
        blocks += [_value(kind, "###") for kind in sorted(ours, key=lambda kind: kind.__name__)]
    return _joined(
        MADE,
        "# Axis values",
        "A layer is one value on each axis of `AttentionSpec`. Any legal combination is a layer; "
        "an illegal one is refused with every rule that it breaks.",
        *blocks,
    )


def _index() -> str:
    rows_by_group: dict[str, list[str]] = {name: [] for name in GROUPS}
    length = COUNTED[-1]
    for name in PRESETS:
        spec = drawn_spec(name, D_MODEL, HEADS, length=length)
        cost = mean_cost(name, D_MODEL, HEADS, length=length)
        base = sized("standard", D_MODEL, HEADS, length=length).cost(length)
        differs = axes(spec).replace("|", "\\|")
        rows_by_group[group(spec)].append(
            f"| [{TITLES[name]}]({name}.md) | `{name}` | {differs} "
            f"| {cost.flops / base.flops:.2f}x | {state(cost)} "
            f"| {describe(PRESETS[name]).identifier} |"
        )
    columns = ("mechanism", "name here", "composition", "FLOPs", "KV cache", "source")
    head = f"| {' | '.join(columns)} |\n|---|---|---|--:|--:|---|"
    return _joined(
        MADE,
        "# Mechanisms",
        "Published attention mechanisms: what each is composed of, which positions it sees, and "
        "what it costs. All are compositions of [axis values](../axes.md).",
        *(
            _joined(f"## {name}", "\n".join([head, *rows])).rstrip()
            for name, rows in rows_by_group.items()
            if rows
        ),
        f"FLOPs: one layer at d_model {D_MODEL}, {HEADS} heads and {length:,} tokens, relative to "
        "standard attention. KV cache: numbers that a streaming layer keeps, per past token unless "
        "fixed.",
    )


def _gallery() -> str:
    """Show the data flow and the pattern of every mechanism, in groups."""
    cards: dict[str, list[str]] = {name: [] for name in GROUPS}
    for name in PRESETS:
        title = TITLES[name]
        cards[group(sized(name, D_MODEL, HEADS, length=DRAWN))].append(
            f'<a class="card" href="{name}.html" title="{title}">'
            f'<img class="flow" src="{name}-flow.svg" alt="Data flow of {title}" loading="lazy">'
            f'<img class="pattern" src="{name}.svg" alt="Pattern of {title}" loading="lazy">'
            "</a>"
        )
    return _joined(
        "---\nhide: [toc]\n---",
        MADE,
        "# Gallery",
        "What each mechanism computes, and which queries attend to which keys, for "
        f"{DRAWN} tokens, {HEADS} heads and d_model {D_MODEL}. Both are drawn from the "
        "composition; `suffice show NAME --flow FILE` and `--svg FILE` draw your own.",
        *(
            _joined(f"## {name}", '<div class="gallery">\n' + "\n".join(of) + "\n</div>").rstrip()
            for name, of in cards.items()
            if of
        ),
    )


def _joined(*blocks: str) -> str:
    return "\n\n".join(filter(None, blocks)) + "\n"


if __name__ == "__main__":
    write()
    stage()
