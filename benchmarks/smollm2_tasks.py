"""SmolLM2, changed, on HellaSwag, ARC-easy and PIQA, scored by lm-evaluation-harness.

Run: SUFFICE_DATA=FOLDER python -m benchmarks.smollm2_tasks --out FOLDER [--only ROW ...]
     [--limit 500] [--minutes N]          (pip install lm_eval)

Each row of `python -m benchmarks.smollm2` becomes a model of transformers by `suffice.hf`, and the
harness scores it as any other, zero-shot, products in bfloat16. A cache in fewer bits is read in
chunks of 64 tokens, as it is kept. Each row's folder is what `lm_eval --output_path --log_samples`
writes, so `suffice verdict FOLDER/A FOLDER/B` pairs the questions. A row that is there is not
scored again; none begins after --minutes. The accuracies go to
benchmarks/measured/smollm2_tasks.json.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import time
from pathlib import Path
from typing import Any

import torch
from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.models.huggingface import HFLM
from torch import Tensor

from benchmarks import models
from benchmarks.report import CONSOLE
from benchmarks.smollm2 import CASES, CHUNK, TASKS, Subject
from suffice.data.files import locate
from suffice.errors import DataError
from suffice.hf import SufficeForCausalLM, hf_tokenizer
from suffice.memory import Memory
from suffice.models import LM
from suffice.models.packed import unpack
from suffice.utils.files import write_json
from suffice.utils.machine import machine_facts, software_versions

FILE = Path(__file__).parent / "measured" / "smollm2_tasks.json"
FILES = {
    "hellaswag": "eval/hellaswag/hellaswag_val.jsonl.xz",
    "arc_easy": "eval/arc_easy/arc_easy.jsonl.xz",
    "piqa": "eval/piqa/piqa.jsonl.xz",
}
KEPT = ("as it was", "weights in 8 bits", "weights in 4 bits", "K and V in 4 bits")
BATCH = 8


def clean(text: str) -> str:
    """Return a text of HellaSwag as the harness cleans it."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def question(task: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a file as the text, the choices and the index of the right one."""
    if task == "hellaswag":
        choices = [clean(ending) for ending in row["endings"]]
        return {"text": clean(row["ctx"]), "choices": choices, "gold": row["label"]}
    text = f"{row['query'].strip()}\nAnswer:"
    return {"text": text, "choices": row["choices"], "gold": row["gold"]}


def task_of(name: str, folder: Path) -> dict[str, Any]:
    """Return the harness's description of a task, whose questions are written to a folder."""
    place = locate(FILES[name])
    if place is None:
        raise DataError(f"there is no {FILES[name]} below $SUFFICE_DATA; put it there.")
    path = folder / f"{name}.jsonl"
    with lzma.open(place, "rt") as lines:
        rows = [question(name, json.loads(line)) for line in lines]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = ({"metric": one, "aggregation": "mean"} for one in ("acc", "acc_norm"))
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"validation": str(path)}},
        "validation_split": "validation",
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": [one | {"higher_is_better": True} for one in metrics],
        "metadata": {"version": 1.0},
    }


class Harnessed(HFLM):
    """A model of ours for the harness; with a memory its cache is read as it is kept.

    Packed weights are read as the numbers they stand for.

    Args:
        lm: the model.
        tokenizer: its tokenizer.
        memory: of its cache; None reads each text at once.
    """

    def __init__(self, lm: LM, tokenizer: Any, memory: Memory | None) -> None:
        unpack(lm)
        pretrained = SufficeForCausalLM.from_suffice(lm, tokenizer).eval()
        options = {"batch_size": BATCH, "device": "cpu", "mixed_precision_dtype": "bfloat16"}
        super().__init__(pretrained=pretrained, tokenizer=hf_tokenizer(tokenizer), **options)
        self.lm, self.memory = lm, memory

    def _model_call(self, inps: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.memory is None:
            return super()._model_call(inps, *args, **kwargs)
        state = self.lm.state(self.memory)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            chunks = [self.lm(chunk, state=state) for chunk in inps.split(CHUNK, 1)]
        return torch.cat(chunks, dim=1)


def score(subject: Subject, name: str, tasks: list[dict[str, Any]], out: Path, limit: int) -> Any:
    """Score a row, write the harness's files into a folder and return what it found."""
    case, began = CASES[name], time.monotonic()
    model = Harnessed(case.make(subject), subject.tokenizer, case.memory)
    tracker = EvaluationTracker(output_path=str(out))
    found: Any = simple_evaluate(model, tasks=tasks, limit=limit, log_samples=True, num_fewshot=0)
    samples = found.pop("samples")
    tracker.save_results_aggregated(results=found, samples=samples)
    for task, rows in samples.items():
        tracker.save_results_samples(task_name=task, samples=rows)
    scores = {
        task: {one: found["results"][task][f"{one},none"] for one in ("acc", "acc_norm")}
        for task in TASKS
    }
    return {"scores": scores, "questions": limit, "seconds": time.monotonic() - began}


def main() -> None:
    """Score the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="ROW", default=KEPT)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=40.0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    record = json.loads(FILE.read_text()) if FILE.exists() else {"rows": {}}
    tasks = [task_of(name, asked.out / "questions") for name in TASKS]
    subject, began = Subject(models.path("smollm2")), time.monotonic()
    for name in asked.only:
        if name in record["rows"] or time.monotonic() - began > 60 * asked.minutes:
            continue
        folder = asked.out / re.sub(r"\W+", "_", name)
        record["rows"][name] = score(subject, name, tasks, folder, asked.limit)
        facts = {**machine_facts(), **software_versions()}
        record["machine"] = {key: str(value) for key, value in facts.items()}
        write_json(FILE, record)
        CONSOLE.print(name, record["rows"][name], highlight=False)


if __name__ == "__main__":
    main()
