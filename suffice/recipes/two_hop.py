"""A small language model on two hops."""

from __future__ import annotations

from suffice.models import LMConfig
from suffice.recipes.recipe import Recipe
from suffice.train.settings import Training


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
