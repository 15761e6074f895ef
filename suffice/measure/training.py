"""One cell of a comparison: train one model from one seed, score it, write its record."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from suffice.data import Dataset
from suffice.errors import DataError
from suffice.layers import Attention
from suffice.measure.plan import Plan, describe
from suffice.measure.results import Cell
from suffice.measure.scores import Trained, scores_of
from suffice.measure.storage import cell_path, write_cell
from suffice.measure.together import first, together
from suffice.train import Processes, Progress, Run, evaluate, fit, save_model


@dataclass(frozen=True)
class Place:
    """Where the files of one cell lie.

    Args:
        folder: of the comparison.
        stem: name of the cell's files.
    """

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
        """Make the folders.

        Raises:
            DataError: if they cannot be made.
        """
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
    """Train one (mechanism, heads, seed) or go on with it, and write it when it is finished.

    Every mechanism starts from the same state of the random numbers and sees the same batches:
    both depend on the seed alone.

    Args:
        plan: the comparison.
        key: mechanism, number of heads, seed.
        dataset: of the plan's task.
        folder: of the comparison.
        group: the processes that share the batches.
        progress: told of each step.

    Raises:
        DataError: if the record cannot be written.
        CheckpointError: if the state of the training cannot be read or written.
        StateError: if the loss is no longer finite.
        Interrupted: on Ctrl-C; the state is kept.
    """
    mechanism, num_heads, seed = key
    recipe, place = plan.recipe, Place(folder, cell_path(folder, *key).stem)
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
