"""The verbs that write, each as a short command over small models."""

from __future__ import annotations

import hashlib
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from suffice import preset
from suffice.models import LMConfig, folder
from suffice.models.lm import LM
from suffice.testing import drawn
from suffice.text import Characters, TokenFile
from suffice.text.words import SPECIAL, Words
from suffice.train.language import evaluate_lm
from tools.kills.killing import Case

LETTERS, OTHERS = "abcdefgh ", "hgfedcba "
TEXT = "abc cab bad fed had beg gab heed dab ace " * 60
SIZES = {"vocabulary_size": 9, "length": 16, "d_model": 16, "depth": 1, "mlp_width": 16}
SETS = ("steps=6", "batch_size=2", "length=16", "d_model=16", "depth=1", "num_heads=2")
SETS += ("warmup=1", "evaluate_every=2", "evaluation_batches=2")
HEALING = ("batch_size=2", "length=16", "evaluate_every=3", "evaluation_batches=2", "warmup=1")


def _set(*assignments: str) -> tuple[str, ...]:
    return tuple(word for each in assignments for word in ("--set", each))


def _lm(seed: int, **options: Any) -> LM:
    spec = preset("longformer" if options else "standard", 16, 4, causal=True, **options)
    return drawn(LMConfig(**SIZES).build(spec), seed=seed).eval()


def _inputs(place: Path) -> None:
    """A model with its text, and a table."""
    (place / "text.txt").write_text(TEXT)
    folder.save(place / "m", _lm(1), Characters(LETTERS), corpus="text.txt")
    rows = [f"{'good' if n % 2 else 'bad'} text {n},{n % 2}" for n in range(60)]
    (place / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")


def _replaced(place: Path) -> None:
    """Another model, of equal shapes, where the result will be."""
    _inputs(place)
    other = _lm(2, window=3)
    folder.save(place / "out", other, Characters(OTHERS), measured={"validation_loss": 1.5})
    (place / "out" / "quantise.json").write_text('{"bits": 4}')
    (place / "out" / "certificate.json").write_text('{"layers": []}')


def _exported(place: Path) -> None:
    from suffice.export import export

    _inputs(place)
    folder.save(place / "other", _lm(2), Characters(OTHERS))
    export(place / "other", "hf", place / "out")


def _pair(place: Path) -> None:
    """A teacher and a student."""
    from tests.convert.heal.small import LETTERS as ALPHABET
    from tests.convert.heal.small import documents, student, teacher

    (place / "text.txt").write_text(" ".join(documents(20, 0)))
    folder.save(place / "whole", teacher(), ALPHABET, corpus="text.txt")
    folder.save(place / "cheap", student("mqa", naive=True), ALPHABET, corpus="text.txt")


def _digest(model: torch.nn.Module) -> str:
    sha256 = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha256.update(f"{name}{tensor.tolist()}".encode())
    return sha256.hexdigest()


def _model(place: Path, name: str = "out") -> object:
    """Weights, attention, alphabet and measured loss: all must be of one model."""
    stored = folder.read(place / name)
    alphabet = None if stored.tokenizer is None else stored.tokenizer.fingerprint
    facts = stored.facts.get("measured") or {}
    specs = getattr(stored.model, "specs", ())
    return _digest(stored.model), str(specs), alphabet, facts.get("validation_loss")


def _model_with(report: str) -> Any:
    def view(place: Path) -> object:
        return _model(place), json.loads((place / "out" / report).read_text())["bits"]

    return view


def _converted(place: Path) -> object:
    certificate = json.loads((place / "out" / "certificate.json").read_text())
    return _model(place), certificate["layers"]


def _export(place: Path) -> object:
    """The files, which the manifest describes by digests that the reader compares."""
    from suffice.runtime import read

    manifest = read(place / "out")
    for name, file in manifest["files"].items():
        content = (place / "out" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file["sha256"], "a mixture of two exports"
    return manifest["files"]


def _trained(place: Path) -> object:
    """The step, and whether the stored loss is that of the stored weights."""
    lm, tokenizer, facts = folder.load(place / "out")
    text = TokenFile(place / "out" / "tokens" / "validation.bin", tokenizer=tokenizer)
    loss = evaluate_lm(lm, text, length=16, batch_size=4, batches=2)
    stated = facts["measured"]
    assert abs(loss - stated["validation_loss"]) < 1e-4, "the loss of other weights"
    return stated["step"], _digest(lm)


def _healed(place: Path) -> object:
    report = json.loads((place / "out" / "healing.json").read_text())
    return _model(place), report["healed"]["after"]


def _scores(place: Path) -> None:
    for name, scores in (("old", "0.91 0.92 0.90"), ("new", "0.96 0.97 0.95")):
        (place / f"{name}.txt").write_text("\n".join(scores.split()))


def _page_of_a_verdict(place: Path) -> object:
    return (place / "out" / "report.html").read_text()


def _compared(place: Path) -> object:
    """The results without times, and the names of what lies there; every model is whole."""
    from suffice.comparison.results import read_results

    out = place / "out"
    for model in sorted((out / "models").glob("[!.]*")):
        folder.read(model)
    results = read_results(out / "results.json")
    scores = tuple((cell.key, cell.test_accuracy, cell.test_loss) for cell in results.cells)
    names = tuple(
        sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if _is_shown(p, out))
    )
    return scores, names


def _is_shown(path: Path, out: Path) -> bool:
    return path.is_file() and not any(part.startswith(".") for part in path.relative_to(out).parts)


def _is_part_of(seen: Any, new: Any) -> bool:
    return seen[0] == new[0] and set(seen[1]) <= set(new[1])


def _planned(place: Path) -> object:
    return json.loads((place / "plan.json").read_text())["layers"]


def _short_timing() -> None:
    from suffice.comparison import compare
    from suffice.convert.search import timing

    timing.ROUNDS, timing.SECONDS = 3, 1e-4
    import_module("suffice.convert.search.search").ROUNDS = 4
    compare.ROUNDS, compare.SAMPLE_SECONDS = 2, 1e-4


def _one_process() -> None:
    """Let reproduce train one small table in the process that is killed."""
    from papers.tests.tiny import TINY
    from suffice.comparison import jobs
    from suffice_papers import request, tables
    from tests.comparison.conftest import quick

    def train(pool: Any, cells: list, **_: Any) -> list:
        arguments = pool.engine._arguments
        return [job for job in cells if jobs.train_one(job, *arguments).failure is None]

    jobs.Pool.train = train
    tables.TABLES = {"tiny": TINY}
    request.recipe = quick


def _reproduced(place: Path) -> object:
    out = place / "out"
    shown = [p.relative_to(out).as_posix() for p in (out / "report").rglob("*") if p.is_file()]
    cells = tuple(
        (path.name, json.loads(path.read_text())["cell"]["test_loss"])
        for path in sorted((out / "cells").glob("[!.]*.json"))
    )
    if not cells:
        raise FileNotFoundError("no cell")
    return cells, tuple(sorted(name for name in shown if not Path(name).name.startswith(".")))


def _cells_are_part_of(seen: Any, new: Any) -> bool:
    return all(set(mine) <= set(its) for mine, its in zip(seen, new, strict=True))


def _bytes(*names: str) -> Any:
    def view(place: Path) -> object:
        return tuple((place / name).read_bytes() for name in names)

    return view


def _stale(*names: str) -> Any:
    def prepare(place: Path) -> None:
        _inputs(place)
        for name in names:
            (place / name).write_text("earlier")

    return prepare


def _advised(place: Path) -> object:
    return sorted(json.loads((place / "advice.json").read_text()))


def _classifier(place: Path) -> None:
    _inputs(place)
    (place / "answers.csv").write_text("earlier\n")
    _classify(place)


def _network() -> torch.nn.Module:
    from suffice.models import ClassifierConfig

    sizes = {"vocabulary_size": 9, "length": 16, "d_model": 16, "depth": 1, "mlp_width": 16}
    config = ClassifierConfig(**sizes, num_classes=2)
    return drawn(config.build(preset("standard", 16, 2)), seed=3).eval()


def _classify(place: Path) -> None:
    words = Words((*SPECIAL, "good", "bad", "text"), 16)
    folder.save(place / "classifier", _network(), words, classes=["0", "1"], task="own")


QUIET = "--quiet"
CASES: dict[str, Case] = {
    "quantise": Case(
        ("quantise", "m", "--out", "out", "--calibration", "none", QUIET),
        _replaced,
        _model_with("quantise.json"),
    ),
    "convert": Case(
        ("convert", "m", "--to", "gqa:2", "--out", "out", "--calibration", "text.txt", QUIET),
        _replaced,
        _converted,
    ),
    "export": Case(("export", "m", "--format", "hf", "--out", "out", QUIET), _exported, _export),
    "train": Case(
        ("train", "--data", "text.txt", "--out", "out", *_set(*SETS), QUIET),
        _inputs,
        _trained,
        begun="out/run.json",
        between=lambda *_: True,  # the view compares the weights with their loss
    ),
    "heal": Case(
        ("heal", "cheap", "--teacher", "whole", "--steps", "6", *_set(*HEALING))
        + ("--out", "out", QUIET),
        _pair,
        _healed,
        begun="out/healing_run.json",
    ),
    "verdict": Case(("verdict", "old.txt", "new.txt", "--out", "out"), _scores, _page_of_a_verdict),
    "compare": Case(
        ("compare", "--data", "rows.csv", "--mechanisms", "standard,linear", "--seeds", "1")
        + ("--epochs", "1", *_set("d_model=8", "depth=1", "length=8"))
        + ("--anyway", "--out", "out", QUIET),
        _inputs,
        _compared,
        begun="out/plan.json",
        between=_is_part_of,
        patches=_short_timing,
    ),
    "search": Case(
        ("search", "m", "--budget", "state<=60%", "--options", "gqa:2", "--tokens", "300")
        + ("--calibration", "text.txt", "--out", "plan.json", QUIET),
        _inputs,
        _planned,
        begun="plan.search/asked.json",
        patches=_short_timing,
    ),
    "reproduce": Case(
        ("reproduce", "tiny", "--run", "--heads", "1", "--seeds", "1", "--out", "out", QUIET),
        _inputs,
        _reproduced,
        between=_cells_are_part_of,
        patches=_one_process,
    ),
    "predict": Case(
        ("predict", "classifier", "rows.csv", "--out", "answers.csv"),
        _classifier,
        _bytes("answers.csv"),
    ),
    "show": Case(
        ("show", "standard", "--svg", "a.svg", "--flow", "f.svg"),
        _stale("a.svg", "f.svg"),
        _bytes("a.svg", "f.svg"),
        between=lambda seen, new: all(
            one in (b"earlier", its) for one, its in zip(seen, new, strict=True)
        ),
    ),
    "advise": Case(
        ("advise", "--task", "lm", "--model", "15m", "--minutes", "0.01", "--out", "advice.json")
        + (QUIET,),
        _inputs,
        _advised,
    ),
    "studio": Case(
        ("studio", "--export", "page"),
        _inputs,
        _bytes("page/index.html"),
    ),
}
"""By verb."""
