"""The model that a comparison leaves for use, and the lines that use it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffice.comparison.results import Results
from suffice.comparison.sentence import label
from suffice.comparison.sufficiency import UNLEARNED
from suffice.comparison.verdict import Verdict
from suffice.utils.files import read_json, write_json

FILE = "winner.json"
EXAMPLES = {
    "text classifier": '"Fits well, lovely colour."',
    "image classifier": '"photo.jpg"',
    "translator": '"Where is the station?"',
    "language model": '"Once upon a time"',
}


@dataclass(frozen=True)
class Snippet:
    title: str  # such as "PyTorch"
    language: str  # "sh" or "python"
    code: str


def write_winner(folder: Path, results: Results, verdict: Verdict) -> Path | None:
    """Write winner.json, which says which trained model stands for a comparison; return its folder.

    This is the mechanism that the verdict names, or the baseline unless a cheaper one suffices. Of
    its seeds it is the one of the lowest validation loss: the test rows choose nothing. Where the
    baseline is not shown to have learned it is the one of all trainings, with a warning.
    """
    from suffice.comparison.training import CellFiles
    from suffice.models.folder import CONFIG

    suffices = verdict.outcome == "suffices" and verdict.winner is not None
    if suffices:
        cells = results.select(verdict.winner.mechanism, verdict.winner.num_heads)
    else:
        unshown = {heads for heads, floor in verdict.floors.items() if floor.learned is False}
        cells = [
            cell
            for cell in results.cells
            if verdict.outcome == UNLEARNED
            or (cell.mechanism == results.baseline and cell.num_heads not in unshown)
        ]
    cells = [cell for cell in cells if (CellFiles.of(folder, *cell.key).model / CONFIG).is_file()]
    if not cells:
        (folder / FILE).unlink(missing_ok=True)  # of an earlier verdict
        return None
    best = min(cells, key=lambda cell: cell.epochs[cell.best_epoch - 1]["validation_loss"])
    role = (
        "the cheapest that suffices"
        if suffices
        else "the baseline: no cheaper one is shown to suffice"
    )
    warning = ""
    if verdict.outcome == UNLEARNED:
        role = "of all trainings"
        warning = f"{UNLEARNED}: check this model on new rows before use"
    place = CellFiles.of(folder, *best.key).model
    record = {
        "model": place.relative_to(folder).as_posix(),
        "mechanism": best.mechanism,
        "num_heads": best.num_heads,
        "seed": best.seed,
        "why": f"{label(best.mechanism, best.num_heads)}, {role}; seed {best.seed} has the lowest "
        f"validation loss of {len(cells)}{warning and '; '}{warning}",
        "warning": warning,
    }
    write_json(folder / FILE, record)
    return place


def why(folder: Path) -> str:
    """Return why a comparison's model was chosen; empty if none was."""
    return str(read_json(folder / FILE).get("why", "")) if (folder / FILE).is_file() else ""


def model_of(folder: Path) -> str:
    """Return the folder of a comparison's best model."""
    return (folder / read_json(folder / FILE)["model"]).as_posix()


def snippets(folder: Path) -> tuple[Snippet, ...]:
    """Return the lines that use the model of a comparison; none if it left no model."""
    if not (folder / FILE).is_file():
        return ()
    from suffice.models.folder import CONFIG

    model = Path(model_of(folder))
    config = read_json(model / CONFIG)
    kind = config["kind"]
    return (
        Snippet("Command line", "sh", _command(folder, kind, config)),
        Snippet("PyTorch", "python", _pytorch(folder, kind)),
        *_transformers(model, kind),
        Snippet("Other programs", "sh", f"suffice export {model.as_posix()} --format onnx"),
    )


def _command(folder: Path, kind: str, config: dict[str, Any]) -> str:
    run, example = folder.as_posix(), EXAMPLES[kind]
    if kind == "image classifier":
        return f"suffice predict {run} photo.jpg folder/"
    if kind == "language model":
        return f"suffice generate {model_of(folder)}"
    column = config.get("columns", ["text"])[0]
    return (
        f"suffice predict {run} --text {example}\n"
        f"# each row of a table with a column {json.dumps(column)}\n"
        f"suffice predict {run} new.csv --out labelled.csv"
    )


def _pytorch(folder: Path, kind: str) -> str:
    opened = f'import suffice\nmodel = suffice.load("{folder.as_posix()}")\n'
    example = EXAMPLES[kind]
    if kind == "language model":
        return f"{opened}print(model.generate({example}))"
    if kind == "translator":
        return f"{opened}print(*model.translate([{example}]))"
    return (
        f"{opened}inputs = model.prepare([{example}])\n"
        "probabilities = model.network(**inputs).softmax(-1)\n"
        "print(model.classes[int(probabilities.argmax())])"
    )


def _transformers(model: Path, kind: str) -> tuple[Snippet, ...]:
    tasks = {"text classifier": "text-classification", "image classifier": "image-classification"}
    if kind not in tasks:
        return ()
    options = ", truncation=True" if kind == "text classifier" else ""
    code = (
        "import suffice.hf\n"
        "from transformers import pipeline\n"
        f'folder = "{model.as_posix()}"\n'
        f'ask = pipeline("{tasks[kind]}", model=folder{options})\n'
        f"print(ask({EXAMPLES[kind]}))"
    )
    return (Snippet("transformers", "python", code),)
