"""Each layer with each option, all others as they were: how far that alone is."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor, nn

from suffice import checkpoint
from suffice.convert.calibration import attentions, gather, watched
from suffice.convert.exact import Change
from suffice.convert.feature_permutation import SLICED, arranged
from suffice.convert.fit import CLOSED, Trial, best_of, starts
from suffice.convert.maps import Maps, build
from suffice.convert.search.options import Option, memory_of
from suffice.errors import CheckpointError, ConfigError
from suffice.files import write_atomic
from suffice.layers import Attention
from suffice.measure.timing import Times, interleave, summarise_times
from suffice.memory import Dynamic
from suffice.models import LM
from suffice.models.native_decoder import NativeDecoder, unsupported
from suffice.models.state import ModelState
from suffice.spec import AttentionSpec

KEPT = 1 << 28  # numbers of the model as it is that are kept, not computed again


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What replacing layers changed, for each row of text.

    Args:
        divergence: of the other model's predictions from those of the model as it is, nats per
            token.
        loss: of the other model, nats per token.
    """

    divergence: tuple[float, ...]
    loss: tuple[float, ...]


@dataclass(frozen=True)
class _Reference:
    """What the model as it is gives for some rows: inputs of its blocks, and predictions."""

    inputs: list[Tensor]
    logs: Tensor  # probabilities' logarithms, float64
    targets: Tensor


class Judge:
    """A language model and text to hold others against it.

    Args:
        lm: the model as it is, in evaluation.
        batches: rows of tokens [B, T]; every token but a row's first is predicted.
    """

    def __init__(self, lm: LM, batches: Sequence[Tensor]) -> None:
        self.lm = lm
        self.names = [f"blocks.{number}.attention" for number in range(len(lm.blocks))]
        self.batches = [rows.to(lm.device) for rows in batches]
        self.tokens = sum(rows[:, 1:].numel() for rows in batches)
        numbers = lm.config.vocabulary_size + lm.config.d_model * len(lm.blocks)
        few = self.tokens * numbers <= KEPT
        self.kept = [self._reference(rows) for rows in self.batches] if few else None

    @torch.inference_mode()
    def rows(self, layers: Mapping[str, Attention]) -> Rows:
        """Return how far the model is with some layers replaced.

        Args:
            layers: by the names of those they replace.
        """
        divergence, loss = [], []
        at = [number for number, name in enumerate(self.names) if name in layers]
        first = min(at, default=len(self.names))
        blocks = [
            _with(block, layers[name]) if name in layers else block
            for block, name in zip(self.lm.blocks, self.names, strict=True)
        ]
        for reference in self._references():
            logs = reference.logs
            if at:
                x = reference.inputs[first]
                for block in blocks[first:]:
                    x = block(x)
                logs = self._logs(x)
            far, lost = _compared(reference, logs)
            divergence += far
            loss += lost
        return Rows(divergence=tuple(divergence), loss=tuple(loss))

    @torch.inference_mode()
    def rows_of(self, lm: LM) -> Rows:
        """Return how far another model is that reads the same tokens.

        Args:
            lm: in evaluation.
        """
        divergence, loss = [], []
        for reference, rows in zip(self._references(), self.batches, strict=True):
            far, lost = _compared(reference, _logs(lm(rows[:, :-1])))
            divergence += far
            loss += lost
        return Rows(divergence=tuple(divergence), loss=tuple(loss))

    def _references(self) -> Iterator[_Reference]:
        if self.kept is not None:
            yield from self.kept
        else:
            yield from map(self._reference, self.batches)

    @torch.inference_mode()
    def _reference(self, rows: Tensor) -> _Reference:
        inputs, x = [], self.lm.embedding(rows[:, :-1])
        for block in self.lm.blocks:
            inputs.append(x)
            x = block(x)
        return _Reference(inputs, self._logs(x), rows[:, 1:])

    def _logs(self, x: Tensor) -> Tensor:
        return _logs(self.lm.logits(self.lm.norm(x)))


def _with(block: nn.Module, attention: Attention) -> nn.Module:
    """Return a block that is the same but for its attention."""
    other = copy.copy(block)
    other._modules = {**block._modules, "attention": attention}
    return other


def _logs(logits: Tensor) -> Tensor:
    return logits.double().log_softmax(dim=-1)


def _compared(reference: _Reference, logs: Tensor) -> tuple[list[float], list[float]]:
    """Return divergence and loss of each row."""
    was, loss = reference.logs, -logs.gather(2, reference.targets[..., None])
    far = (was.exp() * (was - logs)).sum(dim=-1)
    return far.mean(dim=1).tolist(), loss.mean(dim=(1, 2)).tolist()


ASKED = "asked"


class Work:
    """A folder of results by name; without a folder they are kept in memory alone.

    Args:
        folder: where; made when something is written.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.known: dict[str, Any] = {}

    def claim(self, asked: dict[str, Any], *, resume: bool) -> None:
        """Take the folder for a search, or go on with the one it holds.

        Args:
            asked: what a result depends on.
            resume: whether to go on.

        Raises:
            ConfigError: if it holds another search, or one and none is to go on.
        """
        found = self.read(ASKED)
        if found is not None and not resume:
            raise ConfigError(
                f"{self.folder} holds a search already; go on with it by --resume, or give another "
                "--out."
            )
        if found is not None and (other := [key for key in asked if found.get(key) != asked[key]]):
            raise ConfigError(
                f"{self.folder} holds a search with another {other[0]}; ask for the same, or give "
                "another --out."
            )
        self.write(ASKED, asked)

    def read(self, name: str) -> Any:
        """Return what was written under a name; None if nothing was.

        Raises:
            CheckpointError: if the file is damaged.
        """
        if self.folder is None:
            return self.known.get(name)
        path = self._path(name, "json")
        if not path.exists():
            return None
        try:
            return json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error!s:.100}); delete it, and it will be made again."
            ) from error

    def write(self, name: str, data: Any) -> None:
        """Write plain data under a name, whole or not at all."""
        if self.folder is None:
            self.known[name] = data
            return
        write_atomic(self._path(name, "json"), json.dumps(data, allow_nan=False) + "\n")

    def tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return tensors and facts under a name; None if there are none.

        Raises:
            CheckpointError: if the file is damaged.
        """
        if self.folder is None:
            return self.known.get(f"{name} tensors")
        path = self._path(name, "safetensors")
        return checkpoint.load(path) if path.exists() else None

    def keep(self, name: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write tensors and facts under a name, whole or not at all."""
        if self.folder is None:
            self.known[f"{name} tensors"] = (tensors, facts)
            return
        path = self._path(name, "safetensors")
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.save(path, tensors, facts)

    def _path(self, name: str, kind: str) -> Path:
        return self.folder / f"{'/'.join(quote(part, safe='') for part in name.split('/'))}.{kind}"


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return the sha256 of some tensors' shapes and numbers.

    Example:
        >>> import torch
        >>> one = torch.zeros(2, 3)
        >>> [fingerprint([one]) == fingerprint([other]) for other in (one.clone(), one.T)]
        [True, False]
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


ROOM = 1 << 27  # numbers that sums for fits may take at once
Step = Callable[[str, int, int], None]


def ordered(lm: LM, options: Mapping[str, Sequence[Option]], batches: Sequence[Tensor]) -> LM:
    """Return the model with its features in the one order in which all options are compared.

    Where layers take columns, `convert` orders the features for those of the plan alone; here the
    order serves all layers at once, so that a plan is at most better than its parts.

    Args:
        lm: as it is.
        options: of each layer.
        batches: of the text that is learnt from.
    """
    asked = {
        name: change
        for name, of_layer in options.items()
        if (change := _most(of_layer)) is not None
    }
    if not asked:
        return lm
    moments = gather(lm, {name: attentions(lm)[name] for name in asked}, batches)
    return arranged(lm, asked, moments)[0]


def _most(options: Sequence[Option]) -> Change | None:
    """Return the change that makes most of a layer's maps columns; None where none does."""
    found = [
        one.change
        for one in options
        if one.change.maps is None and any(step.name in SLICED for step in one.change.steps)
    ]
    return max(found, key=lambda one: one.spec.encoder.shares, default=None)


class Fits:
    """The layers of all options, fitted where they are not exact, and kept with the work.

    Args:
        lm: the model, whose features no longer change their order.
        options: of its layers, changes of this very model.
        work: where fitted layers are kept.
    """

    def __init__(self, lm: LM, options: Sequence[Option], work: Work) -> None:
        self.own = attentions(lm)
        self.lm, self.options, self.work = lm, options, work
        self.made: dict[tuple[str, str], Attention | None] = {}

    def fit(self, batches: Sequence[Tensor], step: Step = lambda *_: None) -> None:
        """Fit what is not fitted yet."""
        left = []
        for one in self.options:
            if one.change.maps is not None:
                self.made[one.key] = self._built(one, one.change.maps)
            elif not one.kept and not self._found(one):
                left.append(one)
        if not left:
            return
        names = {one.layer for one in left}
        own = {name: self.own[name] for name in names}
        total = len(batches)
        moments = gather(self.lm, own, batches, lambda done: step("reading", done, total))
        size = self.lm.config.length
        for some in _groups(left):
            begun = {}
            for one in some:
                found = starts(one.change, self.own[one.layer], moments[one.layer], size)
                begun[one.key] = {CLOSED: found[CLOSED]}
            self._fit(some, begun, batches, step)

    def layer(self, option: Option) -> Attention | None:
        """Return the layer of an option; None where it stays as it is."""
        return self.made.get(option.key)

    def _fit(
        self,
        some: Sequence[Option],
        begun: Mapping[tuple[str, str], Mapping[str, Maps]],
        batches: Sequence[Tensor],
        step: Step,
    ) -> None:
        trials: dict[str, dict[tuple[str, str], dict[str, Trial]]] = {}
        for one in some:
            like, spec = self.own[one.layer], one.change.spec
            trials.setdefault(one.layer, {})[one.key] = {
                called: Trial(build(maps, spec, like=like))
                for called, maps in begun[one.key].items()
            }

        def seen(name: str, x: Tensor, where: dict[str, Any], y: Tensor) -> None:
            for of_option in trials[name].values():
                for trial in of_option.values():
                    trial.add(x, where, y)

        with torch.no_grad(), watched({name: self.own[name] for name in trials}, seen):
            for done, batch in enumerate(batches, start=1):
                self.lm(batch)
                step("fitting", done, len(batches))
        for one in some:
            found = best_of(begun[one.key], trials[one.layer][one.key])
            layer = self.made[one.key] = self._built(one, found.maps)
            facts = {"chosen": found.chosen, "error": found.error}
            self.work.keep(_name(one), dict(layer.state_dict()), facts)

    def _found(self, one: Option) -> bool:
        kept = self.work.tensors(_name(one))
        if kept is None:
            return False
        like = self.own[one.layer].q_proj.weight
        layer = Attention(one.change.spec, device=like.device, dtype=like.dtype)
        layer.load_state_dict(kept[0])
        self.made[one.key] = layer.eval()
        return True

    def _built(self, one: Option, maps: Maps) -> Attention:
        return build(maps, one.change.spec, like=self.own[one.layer]).eval()


def _name(one: Option) -> str:
    return f"fits/{one.layer} {one.words}"


def _groups(options: Sequence[Option]) -> Iterator[list[Option]]:
    """Give options together whose sums fit into the room."""
    some: list[Option] = []
    taken = 0
    for one in options:
        spec = one.change.spec
        size = 2 * spec.widths.q * (spec.widths.q + spec.d_model)
        if some and taken + size > ROOM:
            yield some
            some, taken = [], 0
        some.append(one)
        taken += size
    if some:
        yield some


Scored = dict[tuple[str, str], Rows]


def by_rank(options: Mapping[str, Sequence[Option]]) -> list[Option]:
    """Return all options in the order of scoring: the same one of all layers, then the next one.

    A search that is stopped has then scored whole choices, plain ones first.
    """
    longest = max(map(len, options.values()))
    return [
        of_layer[rank]
        for rank in range(longest)
        for of_layer in options.values()
        if rank < len(of_layer)
    ]


def score(
    judge: Judge,
    fits: Fits,
    options: Sequence[Option],
    work: Work,
    *,
    late: Callable[[Scored], bool],
    step: Callable[[int, int], None],
) -> Scored:
    """Return what each option changes; each is written down as soon as it is known.

    Args:
        judge: the model, and the rows it is scored on.
        fits: the layers.
        options: in the order of scoring.
        work: where scores are kept.
        late: whether to stop, told what is scored so far; those that keep a layer and those known
            already are returned anyway.
        step: told how many of how many are done.
    """
    found: Scored = {}
    nothing = judge.rows({})
    for done, one in enumerate(options, start=1):
        layer, name = fits.layer(one), f"scores/{one.layer} {one.words}"
        kept = work.read(name)
        if one.kept:
            found[one.key] = nothing
        elif kept is not None:
            found[one.key] = Rows(divergence=tuple(kept["divergence"]), loss=tuple(kept["loss"]))
        elif not late(found):
            rows = found[one.key] = judge.rows({one.layer: layer})
            work.write(name, {"divergence": rows.divergence, "loss": rows.loss})
        step(done, len(options))
    return found


NATIVE, TORCH = "native", "torch"
WAYS = (NATIVE, TORCH)
DEPTH = 2  # layers of one kind that are timed together
ROUNDS, WARMUP, SECONDS = 15, 2, 2e-3
PREFILL = 512  # tokens read at once

Samples = tuple[float, ...]
Call = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Steps of layers of some kinds behind texts of several lengths.

    Args:
        lengths: tokens, the last one is where plans are compared.
        layers: by way and kind, for each length: seconds of one layer more than nothing, a time
            that is only compared with another's; a way that a kind has not is absent.
    """

    lengths: tuple[int, ...]
    layers: Mapping[tuple[str, AttentionSpec], tuple[Times, ...]]


def added(seconds: float, before: float, share: float) -> float:
    """Return what one kind of layer instead of another adds to a step.

    It never saves more than the layer's share of a step, whatever noise says.

    Args:
        seconds: of a layer of the one kind, as timed.
        before: of the other kind.
        share: of the step of a whole model that is one layer's.

    Example:
        >>> added(3.0, 2.0, 1.0), added(1.0, 2.0, 8.0), added(1.0, 5.0, 1.0)
        (1.0, -1.0, -0.8)
    """
    if seconds >= before:
        return seconds - before
    return -min(before - seconds, share * (1.0 - seconds / before))


def lengths_up_to(length: int) -> tuple[int, ...]:
    """Return the lengths at which steps are timed.

    Example:
        >>> lengths_up_to(512), lengths_up_to(20)
        ((32, 128, 512), (5, 20))
    """
    return tuple(n for n in (length // 16, length // 4, length) if n > 1)


def time_layers(
    lm: LM,
    specs: Sequence[AttentionSpec],
    length: int,
    step: Callable[[int, int], None] = lambda _done, _total: None,
) -> Timed:
    """Time layers of some kinds in models of the sizes of another.

    Args:
        lm: whose sizes are taken.
        specs: the kinds.
        length: the longest text, tokens.
        step: told how many lengths of how many are done.
    """
    lengths = lengths_up_to(length)
    found: dict[tuple[str, AttentionSpec], list[Times]] = {}
    probes = {spec: _probe(lm, spec) for spec in specs}
    for done, at in enumerate(lengths, start=1):
        calls = {
            (way, spec): call
            for spec, probe in probes.items()
            for way in WAYS
            if (call := stepper(probe, at, way)) is not None
        }
        for key, samples in _timed(calls, lm.device, ROUNDS).items():
            each = [seconds / DEPTH for seconds in samples]
            found.setdefault(key, []).append(summarise_times(each))
        step(done, len(lengths))
    return Timed(lengths=lengths, layers={key: tuple(times) for key, times in found.items()})


def time_models(
    calls: Mapping[str, Call], device: torch.device, rounds: int | None = None
) -> dict[str, Samples]:
    """Return the seconds of a step of whole models in each round, by name."""
    return _timed(dict(calls), device, rounds or ROUNDS)


def stepper(lm: LM, length: int, way: str) -> Call | None:
    """Return what steps one token behind a text; None where a model does not step this way.

    The state is as it was after each call.

    Args:
        lm: the model, in evaluation.
        length: of the text with that token.
        way: "native" or "torch".
    """
    if way == NATIVE and unsupported(lm, Dynamic()):
        return None
    state = lm.state(Dynamic()) if way == NATIVE else forgetting(lm)
    model = NativeDecoder(lm, Dynamic()) if way == NATIVE else lm
    read(lm, state, length - 1)
    token = torch.zeros(1, dtype=torch.int64, device=lm.device)

    @torch.inference_mode()
    def call() -> None:
        model.step(token, state)
        state.drop_last(1)

    return call


def forgetting(lm: LM) -> ModelState:
    """Return an empty state in which each layer keeps only what it can still see."""
    return ModelState(
        [block.attention.state(memory_of(block.attention.spec)) for block in lm.blocks]
    )


@torch.inference_mode()
def read(lm: LM, state: ModelState, length: int) -> None:
    """Read a text of a length into a state."""
    ids = torch.arange(length)[None] % lm.config.vocabulary_size
    for piece in ids.split(PREFILL, dim=1):
        lm.features(piece.to(lm.device), state=state)


def _timed(calls: dict[Any, Call], device: torch.device, rounds: int) -> dict[Any, Samples]:
    """Time calls in turn."""
    once = {"warmup": WARMUP, "min_seconds_per_sample": SECONDS, "device": str(device)}
    return interleave(calls, rounds=rounds, **once)


def _probe(lm: LM, spec: AttentionSpec) -> LM:
    """Return a small model of layers of one kind; what is not attention is the same for all."""
    sizes = lm.config
    small = {
        "depth": DEPTH,
        "vocabulary_size": min(sizes.vocabulary_size, 256),
        "mlp_width": min(sizes.mlp_width, sizes.d_model),
        "dropout": 0.0,
    }
    made = {"device": lm.device, "dtype": lm.norm.weight.dtype}
    return replace(sizes, **small).build(replace(spec, dropout=0.0), **made).eval()
