"""Small language models that are compared by epochs: text, and five drawn tasks."""

from __future__ import annotations

from typing import Any

from suffice.models import LMConfig
from suffice.recipes.recipe import Recipe
from suffice.train.settings import Training


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
        task_options=(("corpus", "tinyshakespeare"), ("tokenizer", "characters"), ("length", 64)),
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
        task_options=(
            ("corpus", "tinyshakespeare"),
            ("tokenizer", "characters"),
            ("length", 64),
            ("rows", 6_000),
        ),
        model={"d_model": 64, "depth": 2, "mlp_width": 256, "start": 0.1},
        training={"epochs": 3, "batch_size": 32, "learning_rate": 3e-3, "warmup": 0.1},
    )


def copy(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features repeat 8 to 12 symbols of 32 after a mark.

    The stretch is as far back as it is long, so windows shorter than 8 tokens cannot, and sums of
    features have to keep every symbol with its place. A blind guess is right in 1 of 32.
    """
    return _probe(
        "copy",
        "Copying 8 to 12 symbols",
        (("symbols", 32), ("shortest", 8), ("length", 12), ("room", 16)),
        vocabulary_size=34,
        length=32,
        epochs=8,
        learning_rate=3e-3,
        schedule="cosine",
    ).at(scale)


def induction(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features continue a stretch of 16 symbols seen before.

    One block passes on the symbol before, another finds the same symbol: the circuit behind
    in-context copying. Windows shorter than the distance cannot. A guess among
    the symbols not yet repeated is right in about 1 of 11 answers.
    """
    return _probe(
        "induction",
        "Induction, 8 of 16 symbols again",
        (("symbols", 16), ("length", 16), ("repeated", 8)),
        vocabulary_size=16,
        length=24,
        epochs=4,
        learning_rate=3e-3,
        schedule="cosine",
    ).at(scale)


def mqar(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features recall 8 values by their keys, see `suffice.data`.

    Exact recall over the whole row: a window that does not reach the pairs cannot answer at all,
    and sums of smooth features blur which value was whose. A guess among the values of a row is
    right in 1 of 8 answers.
    """
    return _probe(
        "mqar",
        "Associative recall of 8 pairs",
        (("pairs", 8), ("keys", 16), ("values", 16)),
        vocabulary_size=32,
        length=24,
        epochs=4,
        learning_rate=3e-3,
        schedule="cosine",
    ).at(scale)


def passkey(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features find a number of 3 digits among 3 others in 64 tokens.

    It tests reach: through a window, only a row whose passkey is near its end can be answered.
    Sums of features do reach, and only have to keep the passkey apart from the other numbers. A
    blind guess of a digit is right in 1 of 10.
    """
    return _probe(
        "passkey",
        "Passkey among 3 other numbers",
        (("length", 64), ("digits", 3), ("decoys", 3)),
        vocabulary_size=21,
        length=64,
        epochs=4,
        learning_rate=3e-3,
        schedule="cosine",
    ).at(scale)


def two_hop(scale: str = "paper") -> Recipe:
    """Three causal blocks of 64 features look a value up and then look up what they found.

    One block passes on what stood before, the next finds the first fact, the last the second one;
    a model of one block can do no more than guess among the ends of the chains, which is right in
    1 of 3 answers.
    """
    return _probe(
        "two_hop",
        "Two hops, 3 chains",
        (("chains", 3), ("symbols", 6)),
        vocabulary_size=24,
        length=21,
        depth=3,
        epochs=8,
        learning_rate=1e-3,  # constant: the two hops are learned at once, sooner or later
    ).at(scale)


def _probe(
    task: str,
    title: str,
    task_options: tuple[tuple[str, Any], ...],
    *,
    vocabulary_size: int,
    length: int,
    depth: int = 2,
    **training: Any,
) -> Recipe:
    return Recipe(
        name=task,
        title=f"{title}, language model of {depth} blocks, d_model 64, {length} tokens",
        task=task,
        task_options=task_options,
        model=LMConfig(
            vocabulary_size=vocabulary_size,
            length=length,
            d_model=64,
            depth=depth,
            mlp_width=128,
            tied=False,
            start=0.1,
        ),
        training=Training(batch_size=64, warmup=0.1, clip=1.0, **training),
        num_heads=2,
    )
