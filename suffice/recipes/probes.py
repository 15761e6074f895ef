"""A small language model on text, by epochs, so that mechanisms can be compared on it."""

from __future__ import annotations

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
    """Two causal blocks of 64 features repeat 8 to 12 symbols of 32 behind a mark.

    The stretch lies as far back as it is long, so windows shorter than 8 tokens cannot, and sums
    of features have to keep every symbol with its place. A blind guess is right in 1 of 32.
    """
    return Recipe(
        name="copy",
        title="Copying 8 to 12 symbols, language model of 2 blocks, d_model 64, 32 tokens",
        task="copy",
        task_options=(("symbols", 32), ("shortest", 8), ("length", 12), ("room", 16)),
        model=LMConfig(
            vocabulary_size=34, length=32, d_model=64, depth=2, mlp_width=128, tied=False, start=0.1
        ),
        training=Training(
            epochs=8,
            batch_size=64,
            learning_rate=3e-3,
            warmup=0.1,
            schedule="cosine",
            clip=1.0,
        ),
        num_heads=2,
    ).at(scale)


def induction(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features continue a stretch of 16 symbols seen before.

    A block has to find the same symbol and another one to have passed on what stood before: the
    circuit behind in-context copying. Windows shorter than the way back cannot. A guess among
    the symbols not yet repeated is right in about 1 of 11 answers.
    """
    return Recipe(
        name="induction",
        title="Induction, 8 of 16 symbols again, language model of 2 blocks, d_model 64, 24 tokens",
        task="induction",
        task_options=(("symbols", 16), ("length", 16), ("repeated", 8)),
        model=LMConfig(
            vocabulary_size=16, length=24, d_model=64, depth=2, mlp_width=128, tied=False, start=0.1
        ),
        training=Training(
            epochs=4,
            batch_size=64,
            learning_rate=3e-3,
            warmup=0.1,
            schedule="cosine",
            clip=1.0,
        ),
        num_heads=2,
    ).at(scale)


def mqar(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features recall 8 values by their keys, see `suffice.data`.

    Exact recall over the whole row: a window that does not reach the pairs cannot answer at all,
    and sums of smooth features blur which value was whose. A guess among the values of a row is
    right in 1 of 8 answers.
    """
    return Recipe(
        name="mqar",
        title="Associative recall of 8 pairs, language model of 2 blocks, d_model 64, 24 tokens",
        task="mqar",
        task_options=(("pairs", 8), ("keys", 16), ("values", 16)),
        model=LMConfig(
            vocabulary_size=32, length=24, d_model=64, depth=2, mlp_width=128, tied=False, start=0.1
        ),
        training=Training(
            epochs=4,
            batch_size=64,
            learning_rate=3e-3,
            warmup=0.1,
            schedule="cosine",
            clip=1.0,
        ),
        num_heads=2,
    ).at(scale)


def passkey(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features find a number of 3 digits among 3 others in 64 tokens.

    It tests reach: through a window, only a row whose passkey lies near its end can be answered.
    Sums of features do reach, and only have to keep the passkey apart from the other numbers. A
    blind guess of a digit is right in 1 of 10.
    """
    return Recipe(
        name="passkey",
        title="Passkey among 3 other numbers, language model of 2 blocks, d_model 64, 64 tokens",
        task="passkey",
        task_options=(("length", 64), ("digits", 3), ("decoys", 3)),
        model=LMConfig(
            vocabulary_size=21, length=64, d_model=64, depth=2, mlp_width=128, tied=False, start=0.1
        ),
        training=Training(
            epochs=4,
            batch_size=64,
            learning_rate=3e-3,
            warmup=0.1,
            schedule="cosine",
            clip=1.0,
        ),
        num_heads=2,
    ).at(scale)


def two_hop(scale: str = "paper") -> Recipe:
    """Three causal blocks of 64 features look a value up and then look up what they found.

    One block passes on what stood before, the next finds the first fact, the last the second one;
    a model of one block can do no more than guess among the ends of the chains, which is right in
    1 of 3 answers.
    """
    return Recipe(
        name="two_hop",
        title="Two hops, 3 chains, language model of 3 blocks, d_model 64, 21 tokens",
        task="two_hop",
        task_options=(("chains", 3), ("symbols", 6)),
        model=LMConfig(
            vocabulary_size=24, length=21, d_model=64, depth=3, mlp_width=128, tied=False, start=0.1
        ),
        training=Training(
            epochs=8,
            batch_size=64,
            learning_rate=1e-3,
            warmup=0.1,  # and then constant: the two hops are learnt at once, sooner or later
            clip=1.0,
        ),
        num_heads=2,
    ).at(scale)
