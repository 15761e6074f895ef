"""Each layer with each option, all others as they were: how far that alone is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from suffice.convert.search.fits import Fits
from suffice.convert.search.judge import Judge, Rows
from suffice.convert.search.library import Option
from suffice.convert.search.work import Work

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
