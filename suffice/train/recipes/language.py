"""Recipes of language models, and the user's changes to them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from suffice.errors import check_known
from suffice.models import CONFIGURATIONS, configuration
from suffice.models.configurations import Configured, attention_of
from suffice.train.language import LMTraining
from suffice.train.recipes.base import Scaled

SIZES = ("d_model", "depth", "mlp_width")  # which a configuration fixes
NOT_SET = ("length", "vocabulary_size")  # of the model: the training and the tokenizer say them


@dataclass(frozen=True, kw_only=True)
class LMRecipe(Scaled):
    """A corpus, a tokenizer, a model and a training."""

    name: str  # of the recipe's function
    title: str  # one line
    corpus: str  # a name or path, see `suffice.text.corpus`
    tokenizer: str  # see `suffice.text.choose_tokenizer`
    configuration: str  # name of the model, see `suffice.models.configuration`
    mechanism: str | None = None  # of its attention; None: the configuration's own
    rounded: int = 1  # the model's vocabulary is a multiple of this, at least the tokenizer's
    # of the configuration and of the mechanism; d_model, depth and mlp_width change the
    # configuration's sizes, vocabulary_size is the number of learned byte pairs
    options: tuple[tuple[str, Any], ...] = ()
    training: LMTraining  # its length is the model's
    scale: str = "paper"  # "small" for the twin of minutes

    @property
    def vocabulary_size(self) -> int | None:
        """Number of byte pairs that a tokenizer learns; None for other tokenizers."""
        return dict(self.options).get("vocabulary_size")

    def changed(self, settings: dict[str, Any]) -> LMRecipe:
        """Return the recipe with other settings, each of the training, the recipe or the model."""
        names = {f.name for f in fields(LMTraining)}
        training = {name: value for name, value in settings.items() if name in names}
        if isinstance(training.get("betas"), list):
            training["betas"] = tuple(training["betas"])
        of_recipe = {n: v for n, v in settings.items() if n in ("configuration", "mechanism")}
        options = {n: v for n, v in settings.items() if n not in {*names, *of_recipe}}
        return replace(
            self,
            training=replace(self.training, **training),
            options=tuple({**dict(self.options), **options}.items()),
            **of_recipe,
        )

    def configured(self, vocabulary_size: int) -> Configured:
        """Return the model's sizes and its attention, for a tokenizer of that many tokens."""
        check_known("configuration", self.configuration, CONFIGURATIONS)
        options = {n: v for n, v in self.options if n not in NOT_SET}
        sizes = {name: options.pop(name) for name in SIZES if name in options}
        sizes_of_run = {
            **options,
            "length": self.training.length,
            "vocabulary_size": -(-vocabulary_size // self.rounded) * self.rounded,
        }
        config, specs = configuration(self.configuration, self.mechanism, **sizes_of_run)
        if not sizes:
            return config, specs
        options = {n: v for n, v in options.items() if n not in ("bias", "dropout")}
        width = sizes.get("d_model")
        if isinstance(width, int) and "mlp_width" not in sizes:
            sizes["mlp_width"] = max(config.mlp_width * width // config.d_model, 1)
        config = replace(config, **sizes)
        return config, attention_of(self.configuration, config, self.mechanism, **options)


# nanoGPT's settings for a laptop
LAPTOP = {
    "learning_rate": 1e-3,
    "min_learning_rate": 1e-4,
    "warmup": 100,
    "weight_decay": 0.1,
    "betas": (0.9, 0.99),
    "clip": 1.0,
    "evaluate_every": 500,
}


def shakespeare_char(scale: str = "paper") -> LMRecipe:
    """Characters of Shakespeare's plays, nanoGPT's settings for a laptop: 4 layers of 128 features.

    The model for a GPU, of 6 layers and 384 features, is `nanogpt_char`: set configuration to it,
    length=256, batch_size=64 and dropout=0.2.

    Source: nanoGPT, README ("I only have a macbook") and config/train_shakespeare_char.py.
        Differs: 5,000 steps as the larger model has, not 2,000, and the whole validation text is
        looked at, not 20 random batches of it.
    """
    return LMRecipe(
        name="shakespeare_char",
        title="Tiny Shakespeare by characters, 4 blocks, d_model 128, 64 tokens",
        corpus="tinyshakespeare",
        tokenizer="characters",
        configuration="nanogpt_char_cpu",
        training=LMTraining(steps=5000, batch_size=12, length=64, **LAPTOP),
    ).at(scale)


def stdlib_bpe(scale: str = "paper") -> LMRecipe:
    """Python's own standard library by 2,048 byte pairs: real text that every machine has.

    The sizes are those of shakespeare_char with rows of 128 tokens.
    """
    return LMRecipe(
        name="stdlib_bpe",
        title="Python's standard library by byte pairs, 4 blocks, d_model 128, 128 tokens",
        corpus="stdlib",
        tokenizer="bpe",
        configuration="nanogpt_char_cpu",
        options=(("vocabulary_size", 2048),),
        training=LMTraining(
            steps=2000,
            batch_size=16,
            length=128,
            **LAPTOP,
            evaluation_batches=64,
            documents="separate",
        ),
    ).at(scale)


# of GPT-2 and TinyLlama
PRETRAINING = {
    "warmup": 2000,
    "weight_decay": 0.1,
    "betas": (0.9, 0.95),
    "clip": 1.0,
    "evaluate_every": 1000,
    "dtype": "bfloat16",
}
# of their small twins
MINUTES = {
    "batch_size": 8,
    "accumulate": 1,
    "length": 256,
    "learning_rate": 1e-3,
    "min_learning_rate": 1e-4,
    "evaluate_every": 50,
    "evaluation_batches": 8,
    "dtype": "float32",
}


def nanogpt_124m(scale: str = "paper") -> LMRecipe:
    """GPT-2 of 124M parameters on OpenWebText as nanoGPT trains it, half a million tokens a step.

    The corpus is the user's folder or file of text; without --data a sample of a thousand pages
    stands in for it, which shows that it runs and no more.

    Small: 15M parameters, three blocks of 256 features and four heads, of which 12.9M are the
    tokenizer's 50,257 tokens; 100 steps of 8 rows of 256 tokens.

    Source: nanoGPT, config/train_gpt2.py and train.py. Differs: the corpus.
    """
    return LMRecipe(
        name="nanogpt_124m",
        title="GPT-2 124M, 12 blocks, d_model 768, 1024 tokens",
        corpus="openwebtext_sample",
        tokenizer="gpt2",
        configuration="gpt2_124m",
        rounded=64,
        training=LMTraining(
            steps=600_000,
            batch_size=480,
            accumulate=40,
            length=1024,
            learning_rate=6e-4,
            min_learning_rate=6e-5,
            evaluation_batches=200,
            **PRETRAINING,
        ),
    ).at(
        scale,
        title="GPT-2 in small, 15M parameters, 3 blocks, d_model 256, 256 tokens",
        options=(("d_model", 256), ("depth", 3), ("num_heads", 4)),
        training={**MINUTES, "steps": 100, "warmup": 10},
    )


def llama_1b_efficient(scale: str = "paper") -> LMRecipe:
    """The Efficient Attention model of 1.14B parameters, trained as TinyLlama is.

    TinyLlama reads SlimPajama and Starcoder; here the corpus is the user's, and a sample of C4
    stands in for it. Its tokenizer is Llama 2's, which the user has: --tokenizer FILE.

    Small: 15M parameters, eight blocks of 384 features, 4,096 byte pairs learned from the corpus;
    200 steps of 8 rows of 256 tokens.

    Source: the published configuration of the authors of arXiv:2403.01643; TinyLlama,
        pretrain/tinyllama.py, arXiv:2401.02385. Differs: the corpus.
    """
    return LMRecipe(
        name="llama_1b_efficient",
        title="Efficient Attention 1.14B, 10 blocks, d_model 3072, 2048 tokens",
        corpus="c4_sample",
        tokenizer="llama",
        configuration="efficient_1b",
        training=LMTraining(
            steps=1_430_512,
            batch_size=512,
            accumulate=64,
            length=2048,
            learning_rate=4e-4,
            min_learning_rate=4e-5,
            evaluation_batches=100,
            **PRETRAINING,
            checkpointing=True,
        ),
    ).at(
        scale,
        title="Efficient Attention in small, 15M parameters, 8 blocks, d_model 384, 256 tokens",
        tokenizer="bpe",
        options=(("d_model", 384), ("depth", 8), ("mlp_width", 1024), ("vocabulary_size", 4096)),
        training={**MINUTES, "steps": 200, "warmup": 20, "checkpointing": False},
    )
