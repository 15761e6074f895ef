"""`suffice fits`: whether a decoder and a text, or its training, fit into a memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

from typer import Argument, Exit, Option

from suffice.choose.fits import ENGINES, table
from suffice.choose.fits.calculator import CHANGES, LONGEST_TEXT, changed, count, longest
from suffice.choose.fits.configs import Sizes, read_config
from suffice.choose.fits.training import HALF, TrainingRun, training_facts
from suffice.cli.options import JsonFlag, check_at_least, options_from_fields
from suffice.cli.terminal import print_json, print_text
from suffice.errors import CheckpointError, ConfigError, check_known, unknown
from suffice.utils.grammar import parse_bytes

SMALL = 1 << 27  # bytes, below which MiB are printed
COUNTED, MEASURED, ESTIMATED = "counted", "measured here", "estimated"
PARTS = {"weights": "weights", "kv_cache": "KV cache", "activations": "activations"}
GROUPS = {8: 128, 4: 32}
"""Weights with one scale, as `suffice quantise` packs them."""


@dataclass(frozen=True, kw_only=True)
class Model:
    name: str
    sizes: Sizes  # fields of the calculator
    warning: str = ""  # what is not known of it
    file_bytes: int | None = None  # of its weights in files of this machine; None: there are none
    before: Sizes | None = None  # the sizes of those files, if a change was made since


@options_from_fields
def fits(
    model: Annotated[
        str,
        Argument(
            help="Published model, such as 'Qwen3 8B'; a config.json or its folder; a .gguf; or "
            "hf:ORG/NAME[@REVISION], of which only config.json is fetched."
        ),
    ],
    *,
    length: Annotated[int, Option(help="Tokens of the text.")] = 4096,
    memory: Annotated[
        str | None,
        Option(
            help="Available memory, such as 24GiB, with --train that of one GPU; by default only "
            "print what is needed."
        ),
    ] = None,
    engine: Annotated[
        str, Option(help="Program that allocates the KV cache: suffice, llama.cpp or vllm.")
    ] = "suffice",
    batch: Annotated[
        int, Option(help="Batch size; with --train, rows that a GPU computes at once.")
    ] = 1,
    bits: Annotated[
        int | None,
        Option(
            help="Bits of a weight: 32, 16, 8 or 4; the model's by default. With --train, of the "
            "products: 16 (bfloat16, the default) or 32; weights have 32."
        ),
    ] = None,
    cache_bits: Annotated[int, Option(help="Bits of a cached number: 32, 16, 8 or 4.")] = 16,
    against: Annotated[
        str | None,
        Option(
            help="Another model, or this one after a change, such as gqa:2+window:512 (gqa:N, "
            "window:W, sinks:N, full:N, memory:8, weights:4): also print the difference."
        ),
    ] = None,
    train: Annotated[
        bool, Option("--train", help="Count a training with AdamW instead, sharded by FSDP.")
    ] = False,
    run: TrainingRun,
    as_json: JsonFlag = False,
) -> None:
    """Say whether a decoder fits into a memory with a text: exit code 0 if it does, 1 if not.

    Sizes come from its configuration; no weight is loaded and no code of a checkpoint is run.
    Numbers are counted, measured here (files) or estimated (activations).
    """
    check_known("engine", engine, ENGINES)
    check_at_least(1, batch=batch, gpus=run.gpus, accumulate=run.accumulate)
    available = None if memory is None else parse_bytes(memory)
    if train:
        changed_options = {
            "against": against is not None,
            "engine": engine != ENGINES[0],
            "cache_bits": cache_bits != HALF,
        }
        _refuse("with", [name for name, is_set in changed_options.items() if is_set])
        run = replace(run, length=length, batch=batch, bits=bits or HALF)
        _training(_model(model, bits), run, available, as_json)
    _refuse("without", [f.name for f in fields(run) if getattr(run, f.name) != f.default])
    settings = {"batch": batch, "state_bits": _legal("--cache-bits", cache_bits)}
    if bits is not None:
        settings |= {"weight_bits": _legal("--bits", bits), "scale_group": GROUPS.get(bits, 0)}
        settings |= dict.fromkeys(("attention_bits", "expert_bits", "embedding_bits"), 0)
    first = _with_settings(_model(model, bits), settings)
    models = [first] if against is None else [first, _other(first, against, settings)]
    facts = [_facts(one, length, engine, available) for one in models]
    if as_json:
        difference = facts[-1]["bytes"]["total"] - facts[0]["bytes"]["total"]
        print_json(facts[0] if against is None else {"models": facts, "difference": difference})
    else:
        print_text(_sentence(facts[0], engine))
        if against is not None:
            print_text(_difference(*facts))
    raise Exit(1 if facts[0]["fits"] is False else 0)


def _refuse(condition: str, names: list[str]) -> None:
    if names:
        wrong = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        raise ConfigError(f"{wrong} {condition} --train: leave one of them out.")


def _training(model: Model, run: TrainingRun, memory: int | None, as_json: bool) -> NoReturn:
    facts = training_facts(model.sizes, run)
    size, days = facts["bytes"], facts["days"]
    suffices = None if memory is None else size["total"] <= memory
    if as_json:
        about = {"model": model.name, **asdict(run), "memory": memory, "fits": suffices}
        print_json({**about, **facts, "warning": model.warning})
    else:
        verdict = {None: "needs", True: "fits: it needs", False: "does not fit: it needs"}[suffices]
        parts = ", ".join(f"{n} {_bytes(b)}" for n, b in size.items() if b and n != "total")
        rate = f"{run.utilisation:.0%} of {run.tflops:g} TFLOP/s"
        time = "" if days is None else f"; {run.tokens:.3g} tokens take {days:,.3g} days at {rate}"
        print_text(
            f"Training {model.name} {verdict} {_bytes(size['total'])} on each of {run.gpus} "
            f"GPU(s): {parts}. A step of {facts['tokens_per_step']:,} tokens is "
            f"{facts['flops_per_step']:.3g} FLOPs{time}. {model.warning}".rstrip()
        )
    raise Exit(1 if suffices is False else 0)


def _legal(option: str, bits: int) -> int:
    if bits not in (32, 16, 8, 4):
        raise ConfigError(f"{option}={bits}: give 32, 16, 8 or 4.")
    return bits


def _with_settings(model: Model, settings: dict[str, Any]) -> Model:
    file_bytes = None if "weight_bits" in settings else model.file_bytes
    return replace(model, sizes=model.sizes | settings, file_bytes=file_bytes)


def _other(model: Model, text: str, settings: dict[str, Any]) -> Model:
    if text.partition(":")[0] in CHANGES:
        return replace(model, name=text, sizes=changed(model.sizes, text), before=model.sizes)
    return _with_settings(_model(text, settings.get("weight_bits")), settings)


def _model(text: str, bits: int | None) -> Model:
    from suffice.utils import hub
    from suffice.utils.files import packaged, read_json

    published = packaged("models", "published.json")
    rows = {str(row.get(key)).lower(): row for row in published for key in ("name", "title")}
    if (row := rows.get(text.lower())) is not None:
        sizes, warning = read_config(row["config"])
        if "mechanism" in row:  # a configuration of Llama's cannot say it
            sizes["projections"] = row["mechanism"].capitalize()
        return Model(
            name=row.get("title", text), sizes=sizes | (row.get("also") or {}), warning=warning
        )
    path = hub.local(text, files=("config.json",))
    if path.suffix == ".gguf":
        return _gguf(path)
    folder, path = (path, path / "config.json") if path.is_dir() else (path.parent, path)
    if not path.is_file():
        titles = [str(row["title"]) for row in published if "title" in row]
        raise unknown("model, folder or file", text, titles)
    sizes, warning = read_config(read_json(path), quantised=bits is None)
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return Model(name=text, sizes=sizes, warning=warning, file_bytes=stored or None)


def _gguf(path: Path) -> Model:
    from suffice.models.gguf import FORMS
    from suffice.models.gguf_format import open_gguf

    file = open_gguf(path)
    architecture = str(file.metadata.get("general.architecture"))
    check_known(f"architecture of {path}", architecture, FORMS)
    entries: dict[str, Any] = {"model_type": FORMS[architecture][1].model_type}
    for theirs, name in table("families")["gguf"].items():
        entries[name] = file.metadata.get(f"{architecture}.{theirs}")
    if FORMS[architecture][0].by_layer and entries["sliding_window"]:
        raise ConfigError(f"{path} lists windows by layer, not counted; give config.json.")
    if (embedding := file.tensors.get("token_embd.weight")) is None:
        raise CheckpointError(f"{path} has no token_embd.weight; download it again.")
    entries["vocab_size"] = embedding.shape[0]
    entries["tie_word_embeddings"] = "output.weight" not in file.tensors
    sizes, warning = read_config(entries)
    stored = sum(tensor.nbytes for tensor in file.tensors.values())
    return Model(name=path.name, sizes=sizes, warning=warning, file_bytes=stored)


def _facts(model: Model, length: int, engine: str, memory: int | None) -> dict[str, Any]:
    answer = count(model.sizes, length)
    weights, basis = answer.weight_bytes, COUNTED
    if model.file_bytes is not None:
        weights, basis = model.file_bytes, MEASURED
        if model.before is not None:  # as many bytes for each number as in the files
            before = count(model.before, length).weight_bytes
            weights, basis = round(weights * answer.weight_bytes / before), ESTIMATED
    spare = answer.weight_bytes - weights
    total = answer.total(engine) - spare
    return {
        "model": model.name,
        "length": length,
        "engine": engine,
        "memory": memory,
        "fits": None if memory is None else total <= memory,
        "longest": None if memory is None else longest(model.sizes, memory + spare, engine),
        "trained": model.sizes["trained"] or None,
        "parameters": answer.weights["total"],
        "active_parameters": answer.weights["active"],
        "bytes": {
            "total": total,
            "weights": weights,
            "kv_cache": answer.state[engine],
            "activations": answer.activations,
        },
        "basis": {
            "weights": basis,
            "kv_cache": COUNTED,
            "activations": ESTIMATED,
        },
        "kv_cache_by_engine": answer.state,
        "warning": model.warning,
    }


def _sentence(facts: dict[str, Any], engine: str) -> str:
    size, basis = facts["bytes"], facts["basis"]
    version = table("families")["engines"].get(engine, {}).get("version")
    allocated = f", as {engine} {version} allocates it" if version else ""
    parts = ", ".join(f"{name} {_bytes(size[key])} {basis[key]}" for key, name in PARTS.items())
    need = f"{_bytes(size['total'])} at {facts['length']:,} tokens{allocated}"
    warning = f" {facts['warning']}" if facts["warning"] else ""
    trained = facts["trained"] or LONGEST_TEXT
    if max(facts["length"], facts["longest"] or 0) > trained:
        warning = f" It was trained on texts of {trained:,} tokens.{warning}"
    if facts["memory"] is None:
        return f"{facts['model']} needs {need} ({parts}).{warning}"
    verdict = "fits" if facts["fits"] else "does not fit"
    longest = "any length" if facts["longest"] >= LONGEST_TEXT else f"{facts['longest']:,} tokens"
    return (
        f"{facts['model']} {verdict} {_bytes(facts['memory'])}: {need} ({parts}); room for "
        f"{longest}.{warning}"
    )


def _difference(first: dict[str, Any], other: dict[str, Any]) -> str:
    before, after = first["bytes"], other["bytes"]
    changes = [
        f"{name} {_bytes(before[key])} -> {_bytes(after[key])}"
        for key, name in PARTS.items()
        if after[key] != before[key]
    ]
    saved = before["total"] - after["total"]
    amount = f"{_bytes(abs(saved))} {'less' if saved >= 0 else 'more'}"
    return f"{other['model']} takes {amount}{': ' * bool(changes)}{', '.join(changes)}."


def _bytes(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= SMALL else f"{size / 2**20:,.2f} MiB"
