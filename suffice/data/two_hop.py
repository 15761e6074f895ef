"""Two hops: facts a b and b c in any order; asked is the c that an a leads to."""

from __future__ import annotations

import numpy as np
import torch

from suffice.data.dataset import NOT_ASKED, Dataset, Split
from suffice.data.drawn import TRAIN, check_counts, drawn, subsets
from suffice.errors import ConfigError


def two_hop(*, chains: int = 3, symbols: int = 6, rows: int = TRAIN, seed: int = 0) -> Dataset:
    """Draw rows of shuffled facts a b and b c, then every a and b alone, then the a's once more.

    At the second coming of an a, asked is the c of its b, so one look at the facts cannot answer:
    what is found has to be looked up again. At the first coming of an a or b, asked is what its own
    fact says, but in training alone: two hops are learnt from one. A b that is found and a b that
    leads on are different tokens. No answer is shown, so who knows the c's of a row but not whose
    they are is right in 1 / chains of the answers: the chance level. 8,192 training rows, 512 for
    validation, 1,024 for the test.

    Args:
        chains: of a row, >= 1; a row has 7 * chains tokens and asks for `chains` answers.
        symbols: different a's there are, b's and c's likewise, >= chains. Ids: a's, b's that lead
            on, b's that are found, c's.
        rows: of the training part.
        seed: of the rows; no training seed changes them.

    Shapes:
        inputs, labels: int64 [N, 7 * chains]

    Raises:
        ConfigError: if a size is not legal, or there are too few different rows.

    Source: Sanford et al. 2024, "Transformers, parallel computation, and logarithmic depth",
        arXiv:2402.09268 (k-hop induction heads). Differs: the hops are facts of two
        tokens, and each is asked for by its first one.
    """
    check_counts("two_hop", chains=chains, symbols=symbols, rows=rows)
    check_counts("two_hop", least=0, seed=seed)
    if symbols < chains:
        raise ConfigError(
            f"two_hop: {chains} chains of {symbols} symbols; those of a row are all different, so "
            "give as many symbols as chains, or more."
        )

    def draw(part: str, random: np.random.RandomState, count: int) -> Split:
        a, b, c = (subsets(random, count, of=symbols, size=chains) for _ in range(3))
        a, b, found, c = a, b + symbols, b + 2 * symbols, c + 3 * symbols
        keys, values = np.concatenate([a, b], axis=1), np.concatenate([found, c], axis=1)
        order, first = (subsets(random, count, of=2 * chains, size=2 * chains) for _ in range(2))
        second = subsets(random, count, of=chains, size=chains)
        shown = np.take_along_axis(np.stack([keys, values], axis=2), order[:, :, None], axis=1)
        shown = shown.reshape(count, 4 * chains)
        inputs = [shown, *(np.take_along_axis(keys, at, axis=1) for at in (first, second))]
        one = np.take_along_axis(values, first, axis=1)
        if part != "train":
            one = np.full_like(one, NOT_ASKED)
        labels = [np.full_like(shown, NOT_ASKED), one, np.take_along_axis(c, second, axis=1)]
        whole = (torch.from_numpy(np.concatenate(tokens, axis=1)) for tokens in (inputs, labels))
        return Split(*(tokens.long() for tokens in whole))

    return drawn(
        "two_hop",
        draw,
        rows=rows,
        seed=seed,
        num_classes=4 * symbols,
        title=f"Two hops, {chains} chains",
        source="drawn at random, after Sanford et al. 2024 (arXiv:2402.09268)",
        chance=1 / chains,
    )
