"""Multi-query associative recall: pairs of a key and a value, then the keys alone."""

from __future__ import annotations

import numpy as np
import torch

from suffice.data.dataset import NOT_ASKED, Dataset, Split
from suffice.data.drawn import TRAIN, check_counts, drawn, subsets
from suffice.errors import ConfigError


def mqar(
    *, pairs: int = 8, keys: int = 16, values: int = 16, rows: int = TRAIN, seed: int = 0
) -> Dataset:
    """Draw rows k1 v1 k2 v2 ... and then the same keys in another order; asked are their values.

    Keys and values of a row are all different. Every key is asked once, and no answer is shown, so
    who knows the values of a row but not which key each is of is right in 1 / pairs of the
    answers: the chance level. 8,192 training rows, 512 for validation, 1,024 for the test.

    Args:
        pairs: of a row, >= 1; a row has 3 * pairs tokens and asks for `pairs` answers.
        keys: different keys there are, >= pairs; their ids come first.
        values: different values there are, >= pairs; their ids follow.
        rows: of the training part.
        seed: of the rows; no training seed changes them.

    Shapes:
        inputs, labels: int64 [N, 3 * pairs]

    Raises:
        ConfigError: if a size is not legal, or there are too few different rows.

    Source: Arora et al. 2023, "Zoology", arXiv:2312.04927, section 3. Differs: the paper asks at
        distances drawn from a power law, with the answers shown and noise between; here all keys
        follow at once, so no answer can be found by elimination.
    """
    check_counts("mqar", pairs=pairs, keys=keys, values=values, rows=rows)
    check_counts("mqar", least=0, seed=seed)
    if min(keys, values) < pairs:
        raise ConfigError(
            f"mqar: {pairs} pairs of {keys} keys and {values} values; those of a row are all "
            "different, so give as many keys and values as pairs, or more."
        )

    def draw(part: str, random: np.random.RandomState, count: int) -> Split:  # noqa: ARG001
        own = subsets(random, count, of=keys, size=pairs)
        theirs = keys + subsets(random, count, of=values, size=pairs)
        order = subsets(random, count, of=pairs, size=pairs)
        shown = np.stack([own, theirs], axis=2).reshape(count, 2 * pairs)
        asked = np.take_along_axis(own, order, axis=1)
        answers = np.take_along_axis(theirs, order, axis=1)
        labels = np.concatenate([np.full_like(shown, NOT_ASKED), answers], axis=1)
        inputs = np.concatenate([shown, asked], axis=1)
        return Split(torch.from_numpy(inputs).long(), torch.from_numpy(labels).long())

    return drawn(
        "mqar",
        draw,
        rows=rows,
        seed=seed,
        num_classes=keys + values,
        title=f"Multi-query associative recall, {pairs} pairs",
        source="drawn at random, after Arora et al. 2023 (arXiv:2312.04927)",
        chance=1 / pairs,
    )
