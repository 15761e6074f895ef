"""Options that several verbs share: their types, defaults, readers and completions."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
from collections.abc import Callable, Collection
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_type_hints

from rich.console import Console
from typer import Argument, Option
from typer.models import ParameterInfo

from suffice.cli.terminal import print_text
from suffice.errors import ConfigError, DataError, check_known, unknown
from suffice.utils.files import packaged, refuse_current
from suffice.utils.grammar import parse_term, split_list
from suffice.utils.hub import is_reference
from suffice.utils.records import is_number, is_whole

if TYPE_CHECKING:
    from suffice.convert.sources import Source
    from suffice.memory import Memory

RUNS = Path("runs")
BASELINE = "standard"
MECHANISMS = "standard,optimised,efficient,super_attention"
STARTED = "standard,standard+window:32"  # what keeps the maps of a pretrained encoder
SEEDS = 5
DEVICE = "cpu"
MEMORIES = ("dynamic", "static:N", "rolling:W", "rolling:W:SINKS")
RECIPE_OF_LM = "shakespeare_char"
MARGIN_POINTS = 1.0  # of test accuracy that may be lost
MAX_NUMBER = 2**62  # of a size or a count: torch's own are of 63 bits


def known(what: str, module: str, table: str) -> dict[str, Any]:
    """Return how an option completes names of a table and refuses others before torch is there.

    Args:
        what: meaning of the names, for the message.
        module: module of the table.
        table: name of the table there, or of a function that lists the names.

    Example:
        >>> complete = known("mechanism", "suffice.presets", "PRESETS")["autocompletion"]
        >>> complete("lin"), complete("standard,mq")
        (['linear', 'linformer'], ['standard,mqa'])
    """

    def names() -> Collection[str]:
        found = getattr(import_module(module), table)
        return found() if callable(found) else found

    def callback(text: str | None) -> str | None:
        for word in split_list(text or ""):
            name = word.partition("+")[0].strip()  # before the changes of a mechanism
            check_known(what, name, names())
        return text

    def autocompletion(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return {"callback": callback, "autocompletion": autocompletion}


A_MECHANISM = known("mechanism", "suffice.presets", "PRESETS")


def existing(path: Path | None) -> Path | None:
    """Refuse a path where nothing is, nor a comparison's model of that name, nor on the hub."""
    there = path is None or is_reference(path) or path.exists()
    if not there and not (path.parent / "models" / path.name).exists():
        raise DataError(f"no such file or folder: {path}")
    return path


def existing_data(text: str | None) -> str | None:
    """Refuse data of the user's where nothing is."""
    from suffice.data.files import resolve

    if text:
        resolve(text)
    return text


Checkpoint = Annotated[
    Path,
    Argument(
        callback=existing,
        help="Folder written by `suffice train`, convert, heal or quantise; or a .gguf.",
    ),
]
AnyModel = Annotated[
    Path,
    Argument(
        callback=existing,
        help="Folder of suffice; folder of transformers (config.json and safetensors); "
        "hf:ORG/NAME[@REVISION] of the Hugging Face hub; .gguf of llama.cpp; or .bin of llama2.c.",
    ),
]
Device = Annotated[str, Option(help="cpu or cuda.")]
JsonFlag = Annotated[bool, Option("--json", help="Print the result as JSON instead.")]
TablesFlag = Annotated[bool, Option("--tables", help="Print all tables and notes, too.")]
Quiet = Annotated[bool, Option("--quiet", help="Show no progress.")]
MemoryOption = Annotated[str, Option(help=f"KV cache: {', '.join(MEMORIES)}.")]
MemoryBits = Annotated[
    str | None,
    Option(help="Store the KV cache in 8 or 4 bits per number; 8:4 = keys in 8, values in 4."),
]
FiguresQuiet = Annotated[
    bool, Option("--quiet", help="Print the text alone, without figures below it.")
]
EngineOption = Annotated[
    str, Option(help="local, or ray for a cluster of many machines (install that extra).")
]
AddressOption = Annotated[
    str | None,
    Option(
        help="HOST:PORT of the cluster; auto (default) for this machine's, local for a new one."
    ),
]
Prompt = Annotated[str, Option(help="Text to continue.")]
TokenizerOption = Annotated[
    Path | None, Option(help="Tokenizer of the model, if its folder has none.")
]


class Parsed(NamedTuple):
    """Marks a field whose option is text that a function reads at the door."""

    read: Callable[[Any], Any]
    text: Any = str | None  # type of the option


def options_from_fields(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that the fields of its dataclasses declare.

    Each parameter whose type is a dataclass is replaced by the fields that carry an `Option`; the
    command gets the dataclass, made of their values. So an option that is also recorded, or passed
    on, is written once: its type, help, default, name and reader.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: _declared(hint) for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        name = parameter.name
        unchanged = parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY)
        parameters += [option for option, _ in groups[name]] if name in groups else [unchanged]

    @wraps(command)
    def wrapper(**values: Any) -> None:
        records = {}
        for name, group in groups.items():
            named = {}
            for option, parsed in group:
                if option.name in values:
                    value = values.pop(option.name)
                    unread = parsed is None or value is None
                    named[option.name] = value if unread else parsed.read(value)
            records[name] = hints[name](**named)
        command(**values, **records)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return wrapper


def _declared(record: Any) -> list[tuple[inspect.Parameter, Parsed | None]]:
    declared = []
    for field in fields(record):
        hint = get_type_hints(record, include_extras=True)[field.name]
        marks = get_args(hint)[1:]
        parsed = next((mark for mark in marks if isinstance(mark, Parsed)), None)
        if option := next((mark for mark in marks if isinstance(mark, ParameterInfo)), None):
            parameter = inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=hint if parsed is None else Annotated[parsed.text, option],
            )
            declared.append((parameter, parsed))
    return declared


@cache
def catalogue() -> dict[str, Any]:
    """Return the mechanisms as `make docs` wrote them, without importing torch."""
    return packaged("view", "catalogue.json")


def set_option(text: str) -> Any:
    """Declare the repeatable option --set NAME=VALUE."""
    return Option("--set", metavar="NAME=VALUE", help=text)


def parse_settings(assignments: list[str], options: dict[str, str]) -> dict[str, Any]:
    """Return the values of assignments such as "window=16"."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"--set {assignment}: write NAME=VALUE, such as window=16.")
        if name in options:
            raise ConfigError(f"--set {assignment}: give {options[name]} instead.")
        if name in values:
            raise ConfigError(f"--set {assignment}: {name} is set twice; give it once.")
        try:
            values[name] = json.loads(value)
        except json.JSONDecodeError:
            values[name] = value
    return values


def mechanism_settings(mechanism: str, assignments: list[str]) -> dict[str, Any]:
    """Return the options of a mechanism from assignments such as "window=16".

    Unknown names are left for the mechanism to refuse.

    Example:
        >>> mechanism_settings("longformer", ["window=16", "bias=false"])
        {'window': 16, 'bias': False}
    """
    from suffice.presets import PRESETS

    flags = ("d_model", "causal", "length", "layer")
    options = {name: f"--{name.replace('_', '-')}" for name in flags} | {"num_heads": "--heads"}
    values = parse_settings(assignments, options)
    parameters = inspect.signature(PRESETS[mechanism]).parameters if mechanism in PRESETS else {}
    for name in values.keys() & parameters.keys():
        _check_type(mechanism, name, values[name], parameters[name].default)
    return values


def _check_type(mechanism: str, name: str, value: object, default: object) -> None:
    """Refuse a value of another type than the default's; if that is None, a size is wanted."""
    if isinstance(default, bool):
        fits, legal = isinstance(value, bool), "true or false"
    elif isinstance(default, str):
        fits, legal = isinstance(value, str), "a word"
    elif isinstance(default, float):
        fits, legal = is_number(value), "a number"
    else:
        fits, legal = value is None or is_whole(value), "a whole number"
    if not fits:
        raise ConfigError(f"--set {name}={value}: {name} of {mechanism} must be {legal}.")


def parse_memory(text: str, bits: str | None = None) -> Memory:
    """Return the KV cache that a text such as "rolling:256:4" names, in bits such as "8" or "8:4".

    Example:
        >>> parse_memory("rolling:256:4")
        Rolling(window=256, sinks=4, spare=0)
        >>> parse_memory("static:64", bits="8").inner
        Static(length=64)
        >>> parse_memory("dynamic", bits="8:4").value_bits
        4
    """
    from suffice.memory import Dynamic, Quantised, Rolling, Static

    term = parse_term(text, MEMORIES, kind="--memory")
    memory = {"dynamic": Dynamic, "static": Static, "rolling": Rolling}[term.name](*term.numbers)
    if bits is None:
        return memory
    if not re.fullmatch("[0-9]{1,2}(:[0-9]{1,2})?", bits):
        raise ConfigError(f"--quantise-memory {bits}: give 8, 4, or KEYS:VALUES such as 8:4.")
    keys, *values = map(int, bits.split(":"))
    return Quantised(memory, bits=keys, value_bits=values[0] if values else None)


def check_at_least(least: int, **values: int | None) -> None:
    """Refuse numbers below the least legal one, or of over 62 bits; None means the default."""
    for name, value in values.items():
        if value is not None and value < least:
            raise ConfigError(f"--{name} {value}: give at least {least}.")
        if value is not None and value > MAX_NUMBER:
            raise ConfigError(f"--{name} {value}: give at most {MAX_NUMBER:,}.")


def check_out(out: Path, **inputs: Path | None) -> None:
    """Refuse to write over one of the models that is read, or a folder one works in."""
    refuse_current(out)
    for name, path in inputs.items():
        if path is not None and os.path.realpath(out) == os.path.realpath(path):
            raise ConfigError(
                f"--out {out} is the {name} itself, which would be overwritten; give another "
                "folder."
            )


def folder_next_to(model: Path, ending: str) -> Path:
    """Return the default folder of a result, next to the model: its name with an ending.

    Example:
        >>> [str(folder_next_to(Path(name), "mqa")) for name in ("m.bin", "hf:team/tiny@v1")]
        ['m-mqa', 'tiny-mqa']
    """
    if not model.name:
        raise ConfigError(f"{str(model)!r} has no name to make one of the result of; give --out.")
    if is_reference(model):
        return Path(f"{model.name.partition('@')[0]}-{ending}")
    name = model.stem if model.suffix in (".bin", ".gguf") else model.name
    return model.with_name(f"{name}-{ending}")


def open_unpacked(path: Path, tokenizer: Path | None = None) -> Source:
    """Open a model with float32 weights; if they were packed, say so on stderr."""
    from suffice.convert.sources import in_bytes, open_source

    source = open_source(path, tokenizer=tokenizer, packed=False)
    if source.unpacked:
        size = in_bytes(source.unpacked)
        print_text(f"{path}: packed weights are unpacked to float32, {size}", Console(stderr=True))
    return source


def corpus_name(text: str | None, facts: dict[str, Any], *, option: str, model: object) -> str:
    """Return the text to read: the one given, else the one a model was trained on."""
    corpus = text or facts.get("corpus")
    if not isinstance(corpus, str):
        raise ConfigError(f"{model} does not record its corpus; name a text with {option}.")
    return corpus


def text_option(flag: str, text: str, facts: dict[str, Any]) -> str:
    """Return the option that a command needs where a model records no corpus, else nothing."""
    return "" if isinstance(facts.get("corpus"), str) else f" {flag} {shlex.quote(text)}"


def scale_suffix(scale: str) -> str:
    """Return the suffix that a scale adds to a folder's name; empty for the paper's scale."""
    return "" if scale == "paper" else f"-{scale}"


def new_run(name: str) -> Path:
    """Return the folder of a new run: runs/NAME-TIME."""
    now = datetime.now()
    while True:  # a clock may stand or go back
        folder = RUNS / f"{name}-{now:%Y%m%d-%H%M%S}"
        if not folder.exists():
            return folder
        now += timedelta(seconds=1)


def latest_run(recipe: str | None, scale: str | None, file: str) -> Path:
    """Return the latest folder under runs/ that holds a file."""
    from suffice.train.recipes import SCALES

    if scale is not None and scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    suffixes = "|".join(scale_suffix(each) for each in ([scale] if scale else SCALES))
    pattern = re.compile(rf"{re.escape(recipe) if recipe else '[^-]+'}({suffixes})-(\d+-\d+)")
    runs = {}
    for path in RUNS.glob(f"*/{file}"):
        if match := pattern.fullmatch(path.parent.name):
            runs[match[2]] = path.parent
    if not runs:
        which = (f" of {recipe}" if recipe else "") + (f" at scale {scale}" if scale else "")
        raise ConfigError(
            f"there is no run{which} under {RUNS}/ to resume; name its folder with --out, or "
            "start one without --resume."
        )
    return runs[max(runs)]
