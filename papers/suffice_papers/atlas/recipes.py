"""The tasks of the atlas: recall with models of about 0.07M parameters, real data with 0.3M.

Nothing here is of a paper. All models of a size have the same blocks as far as their task allows,
and every training is short, so that dozens of mechanisms can be trained from several seeds on two
cores. A mechanism that is slower to learn than Standard is at a disadvantage in them, and that is
part of the question: what suffices with this much training?
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from suffice.models import ClassifierConfig, LMConfig, TranslatorConfig, ViTConfig
from suffice.models.kinds import Sizes
from suffice.train.recipes.base import Recipe
from suffice.train.settings import Training

HEADS = 4


@dataclass(frozen=True, kw_only=True)
class Size:
    """The blocks of all models of one size."""

    title: str  # the size in words
    d_model: int  # features
    depth: int  # blocks of a model of images or of language
    learning_rate: float  # peak of the cosine


SIZES = {
    "70k": Size(title="0.07M parameters", d_model=64, depth=2, learning_rate=3e-3),
    "300k": Size(title="0.3M parameters", d_model=96, depth=4, learning_rate=2e-3),
}
"""By the end of the recipes' names."""
TEXT_DEPTH, VOCABULARY_SIZE = 2, 2_000  # of models whose words take most of their parameters
TRAINING = Training(
    epochs=2,
    batch_size=16,
    learning_rate=2e-3,
    weight_decay=0.05,
    betas=(0.9, 0.99),
    warmup=0.1,
    schedule="cosine",
    clip=1.0,
)
DRAWN = 4_096  # rows of a task of recall
SOLVED = 0.995  # of the validation answers of a task of recall, at which its training ends
Parts = tuple[str, dict[str, Any], Sizes, dict[str, Any]]
"""Title, options of the loader, model, and what differs in the training."""
Task = Callable[[Size], Parts]


def _mnist(size: Size) -> Parts:
    model = ViTConfig(
        image_size=28,
        patch_size=4,
        num_classes=10,
        channels=1,
        d_model=size.d_model,
        depth=size.depth,
        mlp_width=2 * size.d_model,
    )
    return "MNIST, 49 patches", {"size": 28, "rows": 6_000}, model, {}


def _reviews(title: str, classes: int, length: int, batch_size: int, **options: int) -> Task:
    def task(size: Size) -> Parts:
        words = {"length": length, "vocabulary_size": VOCABULARY_SIZE}
        model = ClassifierConfig(
            **words,
            num_classes=classes,
            d_model=size.d_model,
            depth=TEXT_DEPTH,
            mlp_width=2 * size.d_model,
            dropout=0.1,
            norm="pre",
            activation="gelu",
        )
        training = {"batch_size": batch_size}
        return f"{title}, last {length} words", {**words, **options}, model, training

    return task


def _translation_es(size: Size) -> Parts:
    words = VOCABULARY_SIZE // 2
    model = TranslatorConfig(
        source_vocabulary_size=words,
        target_vocabulary_size=words,
        length=12,
        d_model=size.d_model,
        mlp_width=2 * size.d_model,
        encoder_depth=TEXT_DEPTH // 2,
        decoder_depth=TEXT_DEPTH // 2,
        norm="pre",
        activation="gelu",
        dropout=0.1,
    )
    options = {"length": 12, "vocabulary_size": words, "held_out": 1_000, "rows": 20_000}
    return "English to Spanish, 12 words", options, model, {}


def _shakespeare(size: Size) -> Parts:
    options = {"corpus": "tinyshakespeare", "tokenizer": "characters", "rows": 6_000}
    model = _lm(size, 65, 64)
    return "Shakespeare by characters, 64 tokens", {"length": 64, **options}, model, {}


def _stdlib(size: Size) -> Parts:
    words = {"tokenizer": "bpe", "vocabulary_size": VOCABULARY_SIZE}
    model = replace(_lm(size, VOCABULARY_SIZE, 64), depth=TEXT_DEPTH)
    options = {"length": 64, "corpus": "stdlib", **words, "rows": 6_000}
    return "Python's library by byte pairs, 64 tokens", options, model, {}


def _mqar(pairs: int) -> Task:
    symbols = 2 * pairs
    sizes = {"pairs": pairs, "keys": symbols, "values": symbols}
    return _recall(f"Recall of {pairs} pairs", 2 * symbols, 3 * pairs, **sizes)


def _recall(title: str, ids: int, tokens: int, **options: int) -> Task:
    def task(size: Size) -> Parts:
        model = replace(_lm(size, ids, tokens), tied=False, start=0.1)
        training = {"epochs": 20, "batch_size": 64, "enough": SOLVED, "weight_decay": 0.0}
        return f"{title}, {tokens} tokens", {**options, "rows": DRAWN}, model, training

    return task


def _lm(size: Size, vocabulary_size: int, length: int) -> LMConfig:
    return LMConfig(
        vocabulary_size=vocabulary_size,
        length=length,
        d_model=size.d_model,
        depth=size.depth,
        mlp_width=2 * size.d_model,
        start=0.05,
    )


_imdb = _reviews("IMDB reviews", 2, 32, 64)
_womens_clothing = _reviews("Reviews of women's clothing", 5, 48, 16, rows=10_000)
_induction = _recall("Induction", 16, 24, symbols=16, length=16, repeated=8)
_copy = _recall("Copying 8 to 12 symbols", 34, 32, symbols=32, shortest=8, length=12, room=16)
_two_hop = _recall("Two hops", 24, 21, chains=3, symbols=6)
TASKS: dict[str, tuple[str, str, Task]] = {
    "mqar8": ("mqar", "70k", _mqar(8)),
    "mqar16": ("mqar", "70k", _mqar(16)),
    "mqar32": ("mqar", "70k", _mqar(32)),
    "induction": ("induction", "70k", _induction),
    "copy": ("copy", "70k", _copy),
    "two_hop": ("two_hop", "70k", _two_hop),
    "shakespeare": ("text", "300k", _shakespeare),
    "stdlib": ("text", "300k", _stdlib),
    "imdb": ("imdb", "300k", _imdb),
    "mnist": ("mnist", "300k", _mnist),
    "womens_clothing": ("womens_clothing", "300k", _womens_clothing),
    "translation_es": ("translation_es", "300k", _translation_es),
}
"""By name: the data set, the size of the models, and how a recipe reads the data."""


def _recipe_of(name: str) -> Callable[..., Recipe]:
    task, size_name, parts = TASKS[name]
    size = SIZES[size_name]

    def build(scale: str = "paper") -> Recipe:
        title, options, model, training = parts(size)
        return Recipe(
            name=build.__name__,
            title=f"{title}, {size.title}",
            task=task,
            task_options=tuple(options.items()),
            model=model,
            training=replace(TRAINING, learning_rate=size.learning_rate, **training),
            num_heads=HEADS,
        ).at(scale)

    build.__name__ = build.__qualname__ = f"atlas_{name}_{size_name}"
    build.__doc__ = f"Task {name} of the atlas, by a model of about {size.title}."
    return build


ATLAS: dict[str, Callable[..., Recipe]] = {
    build.__name__: build for build in map(_recipe_of, TASKS)
}
