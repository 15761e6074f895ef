"""One cell of a comparison: train one model from one seed, score it, write its record."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from suffice.comparison.answers import NONE, Answers, path_of, write_answers
from suffice.comparison.metrics import METRICS
from suffice.comparison.plan import Plan, describe_for_others
from suffice.comparison.results import Cell, cell_path, write_cell
from suffice.data import Dataset, Split
from suffice.data.dataset import ImagePreparation
from suffice.data.reviews import PAD, SPECIAL, START, UNKNOWN, start_of
from suffice.data.table import READS
from suffice.data.translation import END
from suffice.errors import DataError, check_known, installed_for
from suffice.generate.translate import translate
from suffice.layers import Attention
from suffice.models import folder as model_folder
from suffice.models.composition import Composition
from suffice.spec import AttentionSpec
from suffice.text import BPE, Words
from suffice.train import (
    EvaluationScore,
    Progress,
    TrainingRun,
    evaluate,
    fit,
    resolve_device,
)
from suffice.train.recipes import Recipe
from suffice.train.scoring import ModelInputs, cross_entropy, evaluating, flatten_answers
from suffice.utils.files import replacing_folder, write_json
from suffice.utils.machine import EnergyMeter

BATCH = 256  # rows
PREPROCESSOR = "preprocessor_config.json"  # of a folder of an image classifier, for transformers
DRAWS = 1_000  # seeds between a mechanism and itself, drawn again
MODELS = "models"  # folder of the trained models of a comparison
LARGEST = 700.0  # loss whose exponential is a float


@dataclass(frozen=True, kw_only=True)
class Trained:
    model: nn.Module
    dataset: Dataset
    test: EvaluationScore
    device: str

    @cached_property
    def answers(self) -> Answers:
        return collect(self.model, self.dataset, self.dataset.test, device=self.device)

    @cached_property
    def translations(self) -> tuple[list[str], list[str]]:
        """Greedy translations of the test split, and its own."""
        words, labels = self.dataset.vocabulary, self.dataset.test.labels
        targets = labels.masked_fill(labels < 0, PAD)
        hypotheses = _translations(self).tolist()
        return (
            [_text(row, words, unknown_as="<unknown>") for row in hypotheses],
            [_text(row, words, unknown_as="<rare>") for row in targets.tolist()],
        )


Scored = tuple[float, str | None]
"""A score, and its signature where one is usual."""


def scores_of(trained: Trained) -> tuple[dict[str, float], dict[str, str]]:
    """Return every score of the test split by name, and the signatures of those that have one."""
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
        check_known("score", name, SCORES)


def _balanced_accuracy(trained: Trained) -> Scored:
    return float(METRICS["balanced"].rows(trained.answers).mean()), None


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
    hypotheses, references = trained.translations
    score = metric.corpus_score(hypotheses, [references])
    return float(score.score), str(metric.get_signature())


def _ngrams(trained: Trained) -> np.ndarray:
    # the order is of the sentence's score, which is not used, not of the counts
    metric = _sacrebleu()(tokenize="none", force=True, effective_order=True)
    counts = []
    for hypothesis, reference in zip(*trained.translations, strict=True):
        score = metric.sentence_score(hypothesis, [reference])
        counts.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return np.asarray(counts, dtype=np.float64)


def _translations(trained: Trained) -> Tensor:
    split, end = trained.dataset.test, trained.dataset.vocabulary.index(END)
    translations = torch.full_like(split.inputs, PAD)
    for rows in _batches(split):
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
    return translations


def _text(ids: list[int], words: tuple[str, ...], *, unknown_as: str) -> str:
    text = [unknown_as if one == UNKNOWN else words[one] for one in ids if one != PAD]
    return " ".join(text[: text.index(END)] if END in text else text)


def _batches(split: Split) -> list[slice]:
    return [slice(at, at + BATCH) for at in range(0, len(split), BATCH)]


def _reading(split: Split, rows: slice, device: str) -> ModelInputs:
    place = resolve_device(device)
    return ModelInputs.of(split).map(lambda tensor: tensor[rows].to(place))


def _sacrebleu() -> Any:
    with installed_for("a task that is scored by BLEU", "translation"):
        from sacrebleu.metrics import BLEU
    return BLEU


SCORES: dict[str, Callable[[Trained], Scored]] = {
    "balanced_accuracy": _balanced_accuracy,
    "perplexity": _perplexity,
    "bleu": _bleu,
}


@dataclass(frozen=True)
class CellFiles:
    folder: Path
    stem: str

    @classmethod
    def of(cls, folder: Path, mechanism: str, num_heads: int, seed: int) -> Self:
        """Return the paths of one (mechanism, heads, seed)."""
        return cls(folder, cell_path(folder, mechanism, num_heads, seed).stem)

    @property
    def checkpoint(self) -> Path:
        """The state of the training, gone when the cell is finished."""
        return self.folder / "checkpoints" / f"{self.stem}.safetensors"

    @property
    def model(self) -> Path:
        """The folder of the trained model, see `suffice.models.folder`."""
        return self.folder / MODELS / self.stem

    def discard_checkpoint(self) -> None:
        """Remove the state of a finished training, which a kill may have left."""
        self.checkpoint.unlink(missing_ok=True)

    def make(self) -> None:
        for folder in (self.checkpoint.parent, self.model.parent):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DataError(
                    f"cannot make {folder} ({error.strerror}); choose a folder that can be "
                    "written with --out."
                ) from error


def at_rate(recipe: Recipe, rate: float | None) -> Recipe:
    """Return a recipe with another learning rate; None leaves it as it is."""
    if rate is None:
        return recipe
    training = dataclasses.replace(recipe.training, learning_rate=rate)
    return dataclasses.replace(recipe, training=training)


def train_cell(
    plan: Plan,
    key: tuple[str, int, int],
    dataset: Dataset,
    folder: Path,
    progress: Progress,
    *,
    rate: float | None = None,
    alone: bool = True,  # else the energy of the machine is not that of the cell
) -> Cell:
    """Train one (mechanism, heads, seed) or resume it, and write it when it is finished.

    Every mechanism starts from the same random state and sees the same batches: both depend on the
    seed alone, unless the mechanism is one that is drawn again.
    """
    mechanism, num_heads, seed = key
    seed += DRAWS * (Composition.parse(mechanism).draw or 0)
    recipe, place = at_rate(plan.recipe, rate), CellFiles.of(folder, *key)
    place.make()
    resume = place.checkpoint.exists()
    progress.cell(f"{mechanism} heads {num_heads} seed {key[2]}")
    torch.manual_seed(seed)
    model = recipe.build(mechanism, num_heads)
    meter = EnergyMeter()
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
    # what went before a resumption is not known
    energy = meter.joules() if alone and not resume else None
    cell, answers = _score(plan, key, dataset, model, run)
    cell = dataclasses.replace(cell, joules=energy)

    described = describe_for_others(recipe)
    write_answers(path_of(folder, place.stem), answers)
    with replacing_folder(place.model) as new:
        write_model(new, model, dataset, mechanism=mechanism, recipe=described)
    write_cell(folder, cell)
    place.discard_checkpoint()
    return cell


def write_model(folder: Path, model: nn.Module, dataset: Dataset, **facts: Any) -> None:
    """Write a trained model with all that it takes to use it on new data."""
    about: dict[str, Any] = {"task": dataset.name, **dataset.facts, **facts}
    if dataset.train.labels.dim() == 1:
        about["classes"] = list(class_names(dataset))
    if dataset.train.inputs.dim() == 4:
        _, channels, height, width = dataset.train.inputs.shape
        shape = {"channels": channels, "height": height, "width": width}
        about["preparation"] = {**shape, **dataclasses.asdict(dataset.preparation)}
    words, source = (
        _tokenizer(vocabulary, dataset.train.inputs.shape[1], dataset.word_rule)
        for vocabulary in (dataset.vocabulary, dataset.source_vocabulary)
    )
    if dataset.train.inputs.dim() == 4:
        side = model.config.image_size
        write_json(folder / PREPROCESSOR, _preprocessor(dataset.preparation, side))
    tokenizer = dataset.tokenizer
    if isinstance(tokenizer, BPE) and about.get(READS) == "end":
        length = dataset.train.inputs.shape[1]
        tokenizer = tokenizer.for_rows(length, start_of(tokenizer))
    model_folder.save(folder, model, tokenizer or words, source_tokenizer=source, **about)


def _tokenizer(vocabulary: tuple[str, ...] | None, length: int, rule: str) -> Words | None:
    if vocabulary is None or vocabulary[: len(SPECIAL)] != SPECIAL:
        return None
    return Words(vocabulary, length, rule)


def _preprocessor(preparation: ImagePreparation, side: int) -> dict[str, Any]:
    def channels(values: float | tuple[float, ...]) -> list[float]:
        each = values if isinstance(values, tuple) else (values,)
        return list(each) * (3 // len(each))

    return {
        "image_processor_type": "ViTImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": side, "width": side},
        "resample": 2,  # bilinear
        "do_rescale": True,
        "rescale_factor": preparation.white / 255.0,
        "do_normalize": True,
        "image_mean": channels(preparation.mean),
        "image_std": channels(preparation.std),
    }


def class_names(dataset: Dataset) -> tuple[str, ...]:
    """Return the name of each class of a data set: its number where it has no other."""
    return dataset.class_names or tuple(map(str, range(dataset.num_classes)))


def _score(
    plan: Plan, key: tuple[str, int, int], dataset: Dataset, model: nn.Module, run: TrainingRun
) -> tuple[Cell, Answers]:
    train = evaluate(model, dataset, dataset.train, device=plan.device)
    test = evaluate(model, dataset, dataset.test, device=plan.device)
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    trained = Trained(model=model, dataset=dataset, test=test, device=plan.device)
    scores, signatures = scores_of(trained)
    answers = trained.answers
    if "bleu" in scores:
        answers = dataclasses.replace(answers, ngrams=_ngrams(trained))
    mechanism, num_heads, seed = key
    length = plan.recipe.model_of(mechanism).length
    cell = Cell(
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
        state_bytes=state_bytes([layer.spec for layer in layers], [length] * len(layers)),
    )
    return cell, answers


def state_bytes(specs: Sequence[AttentionSpec], lengths: Sequence[int]) -> int | None:
    """Return the bytes that layers keep of one text in float32; None unless all are causal."""
    if not all(spec.pattern.causal for spec in specs):
        return None
    pairs = zip(specs, lengths, strict=True)
    return sum(spec.state_bytes(spec.attended_positions(length)) for spec, length in pairs)


def collect(model: nn.Module, dataset: Dataset, split: Split, *, device: str = "cpu") -> Answers:
    """Return the answers of a model on every row of a split."""
    place = resolve_device(device)
    model.to(place)
    columns = torch.zeros(len(split), 4, dtype=torch.float64)
    inputs = ModelInputs.of(split)
    with evaluating(model), torch.inference_mode():
        for rows in _batches(split):
            batch = inputs.map(lambda tensor, rows=rows: tensor[rows].to(place))
            batch = batch._replace(inputs=dataset.prepare(batch.inputs))
            columns[rows] = _columns(batch.logits(model), split.labels[rows].to(place)).cpu()
    return _answers(dataset, split, columns)


def answers_of_logits(dataset: Dataset, split: Split, logits: Tensor) -> Answers:
    """Return the answers that logits [N, K] give on every row of a split."""
    return _answers(dataset, split, _columns(logits, split.labels))


def _answers(dataset: Dataset, split: Split, columns: Tensor) -> Answers:
    by_row = split.labels.dim() == 1
    loss, right, predicted, confidence = columns.numpy().T
    none = np.full(len(split), NONE, dtype=np.int64)
    numbers = (dataset.test_rows, dataset.test_groups) if split is dataset.test else (None, None)
    row, group = (None if given is None else given.numpy().astype(np.int64) for given in numbers)
    return Answers(
        label=split.labels.numpy().astype(np.int64) if by_row else none,
        predicted=predicted.astype(np.int64) if by_row else none,
        right=right.copy(),
        asked=split.answers.numpy().astype(np.float64),
        loss=loss.copy(),
        confidence=confidence.copy() if by_row else np.full(len(split), np.nan),
        row=row,
        group=group,
    )


def _columns(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return loss, right labels, predicted class and its probability of each row, [B, 4]."""
    shape = labels.shape
    flat, flat_labels = flatten_answers(logits, labels)
    losses = cross_entropy(flat, flat_labels, reduction="none").double().view(shape)
    predicted = flat.argmax(dim=1)
    right = (predicted == flat_labels).double().view(shape)
    if labels.dim() == 1:
        confidence = flat.softmax(dim=1).amax(dim=1).double()
        return torch.stack([losses, right, predicted.double(), confidence], dim=1)
    nothing = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
    return torch.stack([losses.sum(dim=1), right.sum(dim=1), nothing, nothing], dim=1)


def typical(seconds: list[float]) -> float:
    """Return the median time of an epoch; the first one warms up and does not count.

    Example:
        >>> typical([9.0, 2.0, 3.0, 4.0]), typical([9.0])
        (3.0, 9.0)
    """
    return statistics.median(seconds[1:] or seconds)
