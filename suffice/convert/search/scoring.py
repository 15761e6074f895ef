"""Scores each option of each layer alone: fits it, and measures the divergence it causes."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor, nn

from suffice.convert.calibration import attention_layers, collect_moments
from suffice.convert.exact import Change
from suffice.convert.feature_permutation import SLICED, permuted_for
from suffice.convert.fit import Fit, fit, starts
from suffice.convert.maps import Maps, Weights, build
from suffice.convert.search.options import Option
from suffice.convert.sharing import FIRST, fit_groups, groups_of
from suffice.convert.target import steps_of
from suffice.errors import ConfigError
from suffice.layers import Attention
from suffice.layers.block import shared_kv
from suffice.models import LM, checkpoint
from suffice.utils.files import RunFolder, changed_settings, read_json, write_atomic

CACHED_NUMBERS = 1 << 28  # of the original model's activations; more are computed again
PROBABILITIES = 1 << 25  # of one tensor; a released model has 50,000 for each token
FIT_NUMBERS = 1 << 27  # of the sums of fits in one pass

Key = tuple[str, str]
Step = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class RowScores:
    """The effect of replacing layers, for each row of text."""

    divergence: tuple[float, ...]  # from the original's predictions, nats per token
    loss: tuple[float, ...]  # nats per token


@dataclass(frozen=True)
class _Reference:
    inputs: list[Tensor]  # of its blocks, then of the final norm
    targets: Tensor


class Evaluator:
    """Compares variants of a language model with the original, on rows of text."""

    def __init__(self, lm: LM, batches: Sequence[Tensor]) -> None:
        self.lm = lm
        self.names = [f"blocks.{number}.attention" for number in range(len(lm.blocks))]
        self.batches = [rows.to(lm.device) for rows in batches]
        tokens = sum(rows[:, 1:].numel() for rows in batches)
        numbers = tokens * lm.config.d_model * (len(lm.blocks) + 1)
        self.cached = (
            list(map(self._reference, self.batches)) if numbers <= CACHED_NUMBERS else None
        )

    @torch.inference_mode()
    def with_layers(self, layers: Mapping[str, Attention]) -> RowScores:
        """Return the scores with layers replaced by others, by name."""
        places = [number for number, name in enumerate(self.names) if name in layers]
        blocks = [
            _with_attention(block, layers[name]) if name in layers else block
            for block, name in zip(self.lm.blocks, self.names, strict=True)
        ]
        specs = [block.attention.spec for block in blocks]
        makers = [spec.shares for spec in specs if spec.shares is not None]
        first = min([*places, *makers], default=len(self.names))

        def logits(reference: _Reference, _rows: Tensor) -> Iterator[Tensor]:
            x = reference.inputs[first]
            for block, shared in list(zip(blocks, shared_kv(specs), strict=True))[first:]:
                x = block(x, shared=shared)
            return self._logits(x)

        return self._scores(logits)

    @torch.inference_mode()
    def of_model(self, lm: LM) -> RowScores:
        """Return the scores of another model, in evaluation, that reads the same tokens."""

        def logits(_reference: _Reference, rows: Tensor) -> Iterator[Tensor]:
            return map(lm, rows[:, :-1].split(self._at_once(rows[:, :-1])))

        return self._scores(logits)

    def _scores(self, logits: Callable[[_Reference, Tensor], Iterator[Tensor]]) -> RowScores:
        divergence: list[float] = []
        loss: list[float] = []
        references = self.cached or map(self._reference, self.batches)
        for reference, rows in zip(references, self.batches, strict=True):
            originals = self._logits(reference.inputs[-1])
            targets = reference.targets.split(self._at_once(reference.targets))
            for one, other, of in zip(originals, logits(reference, rows), targets, strict=True):
                original, variant = one.double().log_softmax(-1), other.double().log_softmax(-1)
                kl = (original.exp() * (original - variant)).sum(dim=-1)
                divergence += kl.mean(dim=1).tolist()
                loss += (-variant.gather(2, of[..., None])).mean(dim=(1, 2)).tolist()
        return RowScores(divergence=tuple(divergence), loss=tuple(loss))

    @torch.inference_mode()
    def _reference(self, rows: Tensor) -> _Reference:
        inputs = [self.lm.embedding(rows[:, :-1])]
        for block in self.lm.blocks:
            inputs.append(block(inputs[-1]))
        return _Reference(inputs, rows[:, 1:])

    def _logits(self, x: Tensor) -> Iterator[Tensor]:
        return map(self.lm.logits, self.lm.norm(x).split(self._at_once(x)))

    def _at_once(self, x: Tensor) -> int:
        """Return how many rows have their float64 probabilities in memory together."""
        return max(1, PROBABILITIES // (x.shape[1] * self.lm.config.vocabulary_size))


def _with_attention(block: nn.Module, attention: Attention) -> nn.Module:
    other = copy.copy(block)
    other._modules = {**block._modules, "attention": attention}
    return other


def run_folder(folder: Path) -> RunFolder:
    return RunFolder(folder, "asked.json", "search", results=("results.json",))


class WorkFolder:
    """Results of a search by name, in a folder or in memory."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.memory: dict[str, Any] = {}

    def claim(self, settings: dict[str, Any], *, resume: bool) -> None:
        """Begin a search in the folder, or resume the one it holds."""
        if self.folder is None:
            return
        run = run_folder(self.folder)

        def check() -> None:
            if changes := changed_settings(run.read(), settings):
                raise ConfigError(
                    f"{self.folder} holds a search with other settings: {changes[0]}; repeat "
                    "those, or give another --out."
                )

        run.claim(settings, resume=resume, check=check)

    def read(self, name: str) -> Any:
        """Return the plain data of a name; None if there is none."""
        if self.folder is None:
            return self.memory.get(name)
        path = self._path(name, "json")
        return read_json(path, advice="Delete it to compute it again.") if path.exists() else None

    def write(self, name: str, data: Any) -> None:
        """Write plain data, whole or not at all."""
        if self.folder is None:
            self.memory[name] = data
            return
        write_atomic(self._path(name, "json"), json.dumps(data, allow_nan=False) + "\n")

    def read_tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the tensors and facts of a name; None if there are none."""
        if self.folder is None:
            return self.memory.get(f"{name} tensors")
        path = self._path(name, "safetensors")
        return checkpoint.load(path) if path.exists() else None

    def write_tensors(self, name: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write tensors and facts, whole or not at all."""
        if self.folder is None:
            self.memory[f"{name} tensors"] = (tensors, facts)
            return
        path = self._path(name, "safetensors")
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.save(path, tensors, facts)

    def _path(self, name: str, suffix: str) -> Path:
        parts = "/".join(quote(part, safe="") for part in name.split("/"))
        return self.folder / f"{parts}.{suffix}"


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return the sha256 of the shapes, dtypes and values of tensors."""
    sha256 = hashlib.sha256()
    for tensor in tensors:
        sha256.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        sha256.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return sha256.hexdigest()


def permuted_for_all(
    lm: LM, options: Mapping[str, Sequence[Option]], batches: Sequence[Tensor]
) -> LM:
    """Return the model with one permutation of its features for all options together.

    `convert` permutes them for a plan alone, so a plan can only be better than its parts.
    """
    changes: dict[str, Change] = {}
    for name, of_layer in options.items():
        sliced = [
            option.change
            for option in of_layer
            if option.change.maps is None
            and any(step.name in SLICED for step in option.change.steps)
        ]
        if sliced:  # the change that makes most maps columns
            changes[name] = max(sliced, key=lambda one: one.spec.encoder.shares)
    if not changes:
        return lm
    layers = attention_layers(lm)
    moments = collect_moments(lm, {name: layers[name] for name in changes}, batches)
    return permuted_for(lm, changes, moments)[0]


class CandidateFits:
    """The converted layers of all options, fitted where they are not exact."""

    def __init__(self, lm: LM, options: Sequence[Option], work: WorkFolder) -> None:
        self.lm, self.options, self.work = lm, options, work
        self.originals = attention_layers(lm)
        self.layers: dict[Key, Attention] = {}

    def fit(self, batches: Sequence[Tensor], step: Step = lambda *_: None) -> None:
        """Fit the options that are not exact and not in the work folder."""
        left = []
        for option in self.options:
            if option.change.maps is not None:
                self.layers[option.key] = self._build(option, option.change.maps)
            elif not option.change.unchanged and not self._load(option):
                left.append(option)
        if not left:
            return
        self._fit_sharing([one for one in left if one.change.shares], batches, step)
        left = [one for one in left if not one.change.shares]
        layers = {option.layer: self.originals[option.layer] for option in left}
        total, length = len(batches), self.lm.config.length
        moments = collect_moments(
            self.lm, layers, batches, lambda done: step("reading", done, total)
        )
        for group in _groups(left):
            candidates = {}
            for option in group:
                layer = option.layer
                maps = starts(option.change, self.originals[layer], moments[layer], length)
                best = next(iter(maps))  # not the usual start
                candidates[option.key] = (layer, option.change, {best: maps[best]})
            fits = fit(self.lm, candidates, batches, step=lambda done: step("fitting", done, total))
            for option in group:
                self._add(option, fits[option.key])

    def _fit_sharing(
        self, options: Sequence[Option], batches: Sequence[Tensor], step: Step
    ) -> None:
        total, originals = len(batches), self.originals.items()
        kept = steps_of("keep")

        def progress(stage: str, done: int) -> None:
            step(stage, done, total)

        for words in dict.fromkeys(option.words for option in options):
            alike = [option for option in options if option.words == words]
            planned = {n: Change(layer=x, steps=kept, spec=x.spec, maps=None) for n, x in originals}
            planned |= {option.layer: option.change for option in alike}
            groups = groups_of(planned)
            fits = fit_groups(self.lm, groups, planned, batches, step=progress)[FIRST]
            for option in alike:
                self._add(option, fits[option.layer])

    def _add(self, option: Option, best: Fit) -> None:
        layer = self.layers[option.key] = self._build(option, best.maps)
        facts = {"chosen": best.chosen, "error": best.error}
        self.work.write_tensors(_fit_name(option), dict(layer.state_dict()), facts)

    def layer(self, option: Option) -> Attention | None:
        """Return the layer of an option; None where it stays as it is."""
        return self.layers.get(option.key)

    def _load(self, option: Option) -> bool:
        stored = self.work.read_tensors(_fit_name(option))
        if stored is None:
            return False
        like = self.originals[option.layer].q_proj.weight
        layer = Attention(option.change.spec, device=like.device, dtype=like.dtype)
        layer.load_state_dict(stored[0])
        self.layers[option.key] = layer.eval()
        return True

    def _build(self, option: Option, maps: Maps | Weights) -> Attention:
        return build(maps, option.change.spec, like=self.originals[option.layer]).eval()


def _fit_name(option: Option) -> str:
    return f"fits/{option.layer} {option.words}"


def _groups(options: Sequence[Option]) -> Iterator[list[Option]]:
    group: list[Option] = []
    numbers = 0
    for option in options:
        spec = option.change.spec
        size = 2 * spec.widths.q * (spec.widths.q + spec.d_model)
        if group and numbers + size > FIT_NUMBERS:
            yield group
            group, numbers = [], 0
        group.append(option)
        numbers += size
    yield group


def by_rank(options: Mapping[str, Sequence[Option]]) -> list[Option]:
    """Return every layer's first option, then every second: a stopped search has whole plans."""
    longest = max(map(len, options.values()))
    return [
        of_layer[rank]
        for rank in range(longest)
        for of_layer in options.values()
        if rank < len(of_layer)
    ]


def score(
    evaluator: Evaluator,
    fits: CandidateFits,
    options: Sequence[Option],
    work: WorkFolder,
    *,
    late: Callable[[dict[Key, RowScores]], bool],
    step: Callable[[int, int], None],
) -> dict[Key, RowScores]:
    """Return the scores of each option alone; each is written as soon as it is known."""
    scores: dict[Key, RowScores] = {}
    original = evaluator.with_layers({})
    for done, option in enumerate(options, start=1):
        name = f"scores/{option.layer} {option.words}"
        stored = work.read(name)
        if option.change.unchanged:
            scores[option.key] = original
        elif stored is not None:
            scores[option.key] = RowScores(**{name: tuple(v) for name, v in stored.items()})
        elif not late(scores):
            rows = evaluator.with_layers({option.layer: fits.layer(option)})
            scores[option.key] = rows
            work.write(name, {"divergence": rows.divergence, "loss": rows.loss})
        step(done, len(options))
    return scores
