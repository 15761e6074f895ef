"""Small language models that are compared by epochs: text, and five drawn tasks."""

from __future__ import annotations

from typing import Any

from suffice.models import LMConfig
from suffice.train.recipes.base import Recipe
from suffice.train.settings import Training

PLAYS = (("corpus", "tinyshakespeare"), ("tokenizer", "characters"), ("length", 64))


def lm_small(scale: str = "paper") -> Recipe:
    """Characters of Shakespeare's plays, nanoGPT's model for a laptop: 4 blocks of 128 features.

    The sizes are those of `shakespeare_char`; here every row of the text is read once an epoch, so
    that seeds are paired, and the last tenth of the plays, which nothing is chosen by, is the test.
    The loss is in nats per character. No experiment of the paper at either scale: its language
    models are `nanogpt_124m` and `llama_1b_efficient`, which `suffice train` trains.

    Small: 2 blocks of 64 features, 3 epochs of 6,000 of 13,900 rows.
    """
    return Recipe(
        name="lm_small",
        title="Tiny Shakespeare by characters, language model of 4 blocks, d_model 128, 64 tokens",
        task="text",
        task_options=PLAYS,
        model=LMConfig(vocabulary_size=65, length=64, d_model=128, depth=4, mlp_width=512),
        training=Training(
            epochs=5,
            batch_size=12,
            learning_rate=1e-3,
            weight_decay=0.1,
            betas=(0.9, 0.99),
            warmup=0.02,
            schedule="cosine",
            clip=1.0,
        ),
        num_heads=4,
    ).at(
        scale,
        title="Tiny Shakespeare by characters, language model of 2 blocks, d_model 64, 64 tokens",
        task_options=(*PLAYS, ("rows", 6_000)),
        model={"d_model": 64, "depth": 2, "mlp_width": 256, "start": 0.1},
        training={"epochs": 3, "batch_size": 32, "learning_rate": 3e-3, "warmup": 0.1},
    )


def stdlib(scale: str = "paper") -> Recipe:
    """Python's own library by byte pairs at 1,024 tokens, where cheaper attention is cheaper.

    12 blocks of 96 features, 1.19M parameters: five of six layers can have windows and three of
    four recurrences, as in released models. The text comes with Python and changes with its
    version; 500 of 2,971 rows, half a million tokens, are read once. No paper has this experiment.

    Small: 4 blocks of 64 features, 256 tokens.
    """
    corpus = (("corpus", "stdlib"), ("tokenizer", "bpe"), ("vocabulary_size", 2_000))
    title = "Python's library by byte pairs, language model of {} blocks of {}, {} tokens"
    return Recipe(
        name="stdlib",
        title=title.format(12, 96, "1,024"),
        task="text",
        task_options=(*corpus, ("length", 1_024), ("rows", 500), ("test_rows", 120)),
        model=LMConfig(
            vocabulary_size=2_000, length=1_024, d_model=96, depth=12, mlp_width=192, start=0.05
        ),
        training=Training(
            epochs=1,
            batch_size=1,
            optimiser="muon",
            learning_rate=1e-2,
            weight_decay=0.05,
            betas=(0.9, 0.99),
            warmup=0.05,
            schedule="cosine",
            clip=1.0,
        ),
        num_heads=4,
    ).at(
        scale,
        title=title.format(4, 64, 256),
        task_options=(*corpus, ("length", 256), ("rows", 500), ("test_rows", 120)),
        model={"length": 256, "d_model": 64, "depth": 4, "mlp_width": 128},
    )


def copy(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features repeat 8 to 12 symbols of 32 after a mark.

    The stretch is as far back as it is long, so windows shorter than 8 tokens cannot, and sums of
    features have to keep every symbol with its place. A blind guess is right in 1 of 32.
    """
    title = "Copying 8 to 12 symbols"
    options = {"symbols": 32, "shortest": 8, "length": 12, "room": 16}
    return _probe(scale, "copy", title, options, vocabulary_size=34, length=32, epochs=8)


def induction(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features continue a stretch of 16 symbols seen before.

    One block passes on the symbol before, another finds the same symbol: the circuit behind
    in-context copying. Windows shorter than the distance cannot. A guess among
    the symbols not yet repeated is right in about 1 of 11 answers.
    """
    title = "Induction, 8 of 16 symbols again"
    options = {"symbols": 16, "length": 16, "repeated": 8}
    return _probe(scale, "induction", title, options, vocabulary_size=16, length=24)


def mqar(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features recall 8 values by their keys, see `suffice.data`.

    Exact recall over the whole row: a window that does not reach the pairs cannot answer at all,
    and sums of smooth features blur which value was whose. A guess among the values of a row is
    right in 1 of 8 answers.
    """
    title = "Associative recall of 8 pairs"
    options = {"pairs": 8, "keys": 16, "values": 16}
    return _probe(scale, "mqar", title, options, vocabulary_size=32, length=24)


def passkey(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features find a number of 3 digits among 3 others in 64 tokens.

    It tests reach: through a window, only a row whose passkey is near its end can be answered.
    Sums of features do reach, and only have to keep the passkey apart from the other numbers. A
    blind guess of a digit is right in 1 of 10.
    """
    title = "Passkey among 3 other numbers"
    options = {"length": 64, "digits": 3, "decoys": 3}
    return _probe(scale, "passkey", title, options, vocabulary_size=21, length=64)


def two_hop(scale: str = "paper") -> Recipe:
    """Three causal blocks of 64 features look up a value, then use it as the next key.

    One block passes on what stood before, the next finds the first fact, the last the second one;
    a model of one block can do no more than guess among the ends of the chains, which is right in
    1 of 3 answers.
    """
    return _probe(
        scale,
        "two_hop",
        "Two hops, 3 chains",
        {"chains": 3, "symbols": 6},
        vocabulary_size=24,
        length=21,
        depth=3,
        epochs=8,
        learning_rate=1e-3,
        schedule="constant",  # the two hops are learned at once, sooner or later
    )


def _probe(
    scale: str,
    task: str,
    title: str,
    options: dict[str, Any],
    *,
    vocabulary_size: int,
    length: int,
    depth: int = 2,
    epochs: int = 4,
    learning_rate: float = 3e-3,
    schedule: str = "cosine",
) -> Recipe:
    return Recipe(
        name=task,
        title=f"{title}, language model of {depth} blocks, d_model 64, {length} tokens",
        task=task,
        task_options=tuple(options.items()),
        model=LMConfig(
            vocabulary_size=vocabulary_size,
            length=length,
            d_model=64,
            depth=depth,
            mlp_width=128,
            tied=False,
            start=0.1,
        ),
        training=Training(
            epochs=epochs,
            batch_size=64,
            learning_rate=learning_rate,
            warmup=0.1,
            schedule=schedule,
            clip=1.0,
        ),
        num_heads=2,
    ).at(scale)
