"""One cell of a comparison: train one model from one seed, score it, write its record."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from suffice.data import Dataset, Split
from suffice.data.reviews import PAD, START, UNKNOWN
from suffice.data.translation import END
from suffice.errors import ConfigError, DataError, unknown
from suffice.generate.translate import translate
from suffice.layers import Attention
from suffice.measure.plan import Plan, describe
from suffice.measure.processes import first, together
from suffice.measure.results import Cell, cell_path, write_cell
from suffice.train import (
    Processes,
    Progress,
    Run,
    Score,
    current,
    evaluate,
    fit,
    resolve_device,
    save_model,
)
from suffice.train.evaluate import ModelInputs, evaluating

BATCH = 256  # rows
LARGEST = 700.0  # loss whose exponential is a float


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained model and what it did on the test split."""

    model: nn.Module
    dataset: Dataset
    test: Score
    device: str


Scored = tuple[float, str | None]
"""A score, and its signature where one is usual."""


def scores_of(trained: Trained) -> tuple[dict[str, float], dict[str, str]]:
    """Return every score of the test split by name, and the signatures of those that have one.

    All processes must call it; each scores its share of the rows, and all return the same.
    """
    values, signatures = {}, {}
    _refuse_unknown(trained.dataset)
    for name in trained.dataset.scores:
        values[name], signature = SCORES[name](trained)
        if signature is not None:
            signatures[name] = signature
    return values, signatures


def check_scores(dataset: Dataset) -> None:
    """Refuse a task whose scores cannot be computed, before hours are spent on its training."""
    _refuse_unknown(dataset)
    if "bleu" in dataset.scores:
        _sacrebleu()


def _refuse_unknown(dataset: Dataset) -> None:
    for name in dataset.scores:
        if name not in SCORES:
            raise unknown("score", name, SCORES)


def _balanced_accuracy(trained: Trained) -> Scored:
    """Return the recall of each class of the test split, averaged over the classes."""
    split, classes = trained.dataset.test, trained.dataset.num_classes
    sums = torch.zeros(2, classes, dtype=torch.float64)
    with evaluating(trained.model), torch.inference_mode():
        for rows in _share(split):
            inputs = _reading(split, rows, trained.device)
            inputs = inputs._replace(inputs=trained.dataset.prepare(inputs.inputs))
            labels = split.labels[rows]
            is_right = inputs.logits(trained.model).argmax(dim=1).cpu() == labels
            sums[0] += labels[is_right].bincount(minlength=classes)
            sums[1] += labels.bincount(minlength=classes)
    right, counts = current().sum(sums)
    return float((right / counts)[counts > 0].mean()), None


def _perplexity(trained: Trained) -> Scored:
    loss = trained.test.loss
    return math.exp(loss) if loss < LARGEST else math.inf, None


def _bleu(trained: Trained) -> Scored:
    """Return corpus BLEU, 0 to 100, of greedy translations of the test split.

    Both sides are words as the task cuts them, lower case and without punctuation, so the figure
    is not that of texts as they are written. Each row has one reference. A word that is not in the
    vocabulary is never right, even where the translation is "unknown".
    """
    metric = _sacrebleu()(tokenize="none", force=True)
    words = trained.dataset.vocabulary
    translations = _translations(trained)
    targets = trained.dataset.test.labels.masked_fill(trained.dataset.test.labels < 0, PAD)
    hypotheses = [_text(row, words, unknown_as="<unknown>") for row in translations.tolist()]
    references = [_text(row, words, unknown_as="<rare>") for row in targets.tolist()]
    score = metric.corpus_score(hypotheses, [references])
    return float(score.score), str(metric.get_signature())


def _translations(trained: Trained) -> Tensor:
    """Return greedy translations of the test split, ids [N, T], PAD behind each."""
    split, end = trained.dataset.test, trained.dataset.vocabulary.index(END)
    translations = torch.full_like(split.inputs, PAD)
    for rows in _share(split):
        inputs = _reading(split, rows, trained.device)
        generated = translate(
            trained.model,
            inputs.source,
            start=START,
            max_new_tokens=split.inputs.shape[1],
            stop=[end],
            pad=PAD,
            source_valid=inputs.source_valid,
        )
        translations[rows, : generated.new.shape[1]] = generated.new.cpu()
    return current().sum(translations)


def _text(ids: list[int], words: tuple[str, ...], *, unknown_as: str) -> str:
    text = [unknown_as if one == UNKNOWN else words[one] for one in ids if one != PAD]
    return " ".join(text[: text.index(END)] if END in text else text)


def _share(split: Split) -> list[slice]:
    """Return this process's share of a split's rows, in batches."""
    start, stop = current().share(len(split))
    return [slice(at, min(at + BATCH, stop)) for at in range(start, stop, BATCH)]


def _reading(split: Split, rows: slice, device: str) -> ModelInputs:
    place = resolve_device(device)
    return ModelInputs.of(split).map(lambda tensor: tensor[rows].to(place))


def _sacrebleu() -> Any:
    """Return the class that computes BLEU."""
    try:
        from sacrebleu.metrics import BLEU
    except ModuleNotFoundError as error:
        raise ConfigError(
            "the task is scored by BLEU, for which sacrebleu is not installed; "
            "pip install 'suffice[translation]'."
        ) from error
    return BLEU


SCORES: dict[str, Callable[[Trained], Scored]] = {
    "balanced_accuracy": _balanced_accuracy,
    "perplexity": _perplexity,
    "bleu": _bleu,
}


@dataclass(frozen=True)
class CellFiles:
    """Paths of the files of one cell."""

    folder: Path
    stem: str

    @property
    def checkpoint(self) -> Path:
        """The state of the training, gone when the cell is finished."""
        return self.folder / "checkpoints" / f"{self.stem}.safetensors"

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.folder / "models" / f"{self.stem}.safetensors"

    def make(self) -> None:
        """Make the folders."""
        for folder in (self.checkpoint.parent, self.model.parent):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DataError(
                    f"cannot make {folder} ({error.strerror}); choose a folder that can be "
                    "written with --out."
                ) from error


def train_cell(
    plan: Plan,
    key: tuple[str, int, int],
    dataset: Dataset,
    folder: Path,
    group: Processes,
    progress: Progress,
) -> Cell:
    """Train one (mechanism, heads, seed) or resume it, and write it when it is finished.

    Every mechanism starts from the same random state and sees the same batches: both depend on the
    seed alone.

    Args:
        plan: the comparison.
        key: mechanism, number of heads, seed.
        dataset: of the plan's task.
        folder: of the comparison.
        group: the processes that share the batches.
        progress: called at each step.
    """
    mechanism, num_heads, seed = key
    recipe, place = plan.recipe, CellFiles(folder, cell_path(folder, *key).stem)
    together(group, place.make)
    resume = group.any(group.is_main and place.checkpoint.exists())
    progress.cell(f"{mechanism} heads {num_heads} seed {seed}")
    torch.manual_seed(seed)
    model = recipe.build(mechanism, num_heads)
    run = fit(
        model,
        dataset,
        recipe.training,
        seed=seed,
        device=plan.device,
        checkpoint=place.checkpoint,
        resume=resume,
        progress=progress,
    )
    cell = _score(plan, key, dataset, model, run)
    specs = [spec.to_json() for spec in recipe.specs(mechanism, num_heads)]
    facts = {"recipe": describe(recipe), "specs": specs}

    def write() -> None:
        save_model(place.model, model, facts)
        write_cell(folder, cell)
        place.checkpoint.unlink(missing_ok=True)

    first(group, write)
    return cell


def _score(
    plan: Plan, key: tuple[str, int, int], dataset: Dataset, model: nn.Module, run: Run
) -> Cell:
    train = evaluate(model, dataset, dataset.train, device=plan.device)
    test = evaluate(model, dataset, dataset.test, device=plan.device)
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    scores, signatures = scores_of(
        Trained(model=model, dataset=dataset, test=test, device=plan.device)
    )
    mechanism, num_heads, seed = key
    length = plan.recipe.model_of(mechanism).length
    return Cell(
        mechanism=mechanism,
        num_heads=num_heads,
        seed=seed,
        parameters_layer=sum(p.numel() for p in layers[0].parameters()),
        parameters_model=sum(p.numel() for p in model.parameters()),
        flops=sum(layer.spec.cost(length).flops for layer in layers),
        epochs=tuple(dataclasses.asdict(epoch) for epoch in run.epochs),
        best_epoch=run.best_epoch,
        stopped_early=run.stopped_early,
        seconds_per_epoch=typical([epoch.seconds for epoch in run.epochs]),
        train_loss=train.loss,
        train_accuracy=train.accuracy,
        train_top5=train.top5,
        test_loss=test.loss,
        test_accuracy=test.accuracy,
        test_top5=test.top5,
        scores=scores,
        signatures=signatures,
    )


def typical(seconds: list[float]) -> float:
    """Return the median time of an epoch; the first one warms up and does not count.

    Example:
        >>> typical([9.0, 2.0, 3.0, 4.0]), typical([9.0])
        (3.0, 9.0)
    """
    return statistics.median(seconds[1:] or seconds)
