"""Every option of every layer fitted in closed form: two passes over the text for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from suffice.convert.arrange import SLICED, arranged
from suffice.convert.change import Change
from suffice.convert.fit import CLOSED, Trial, best_of, starts
from suffice.convert.maps import Maps, build
from suffice.convert.moments import attentions, gather, watched
from suffice.convert.search.library import Option
from suffice.convert.search.work import Work
from suffice.layers import Attention
from suffice.models import LM

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
    return max(found, key=lambda one: one.spec.projections.shares, default=None)


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
