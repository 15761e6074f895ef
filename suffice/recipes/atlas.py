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
from suffice.recipes.recipe import Recipe
from suffice.train.settings import Training

HEADS = 4


@dataclass(frozen=True, kw_only=True)
class Size:
    """The blocks of all models of one size.

    Args:
        name: end of the recipes' names.
        title: the size in words.
        d_model: features.
        depth: blocks of a model of images or of language.
        text_depth: blocks of a model whose words take most of its parameters.
        vocabulary_size: words of such a model.
        learning_rate: peak of the cosine.
    """

    name: str
    title: str
    d_model: int
    depth: int
    text_depth: int
    vocabulary_size: int
    learning_rate: float


SIZES = (
    Size(
        name="70k",
        title="0.07M parameters",
        d_model=64,
        depth=2,
        text_depth=2,
        vocabulary_size=2_000,
        learning_rate=3e-3,
    ),
    Size(
        name="300k",
        title="0.3M parameters",
        d_model=96,
        depth=4,
        text_depth=2,
        vocabulary_size=2_000,
        learning_rate=2e-3,
    ),
)
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
SOLVED = 0.995  # of the validation answers of a task of recall, at which its training ends
Task = Callable[[Size], tuple[str, dict[str, Any], Sizes, dict[str, Any]]]
"""From a size to the title, the loader's options, the model and what differs in the training."""


def _mnist(size: Size) -> tuple[str, dict[str, Any], Sizes, dict[str, Any]]:
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
    def task(size: Size) -> tuple[str, dict[str, Any], Sizes, dict[str, Any]]:
        words = {"length": length, "vocabulary_size": size.vocabulary_size}
        model = ClassifierConfig(
            **words,
            num_classes=classes,
            d_model=size.d_model,
            depth=size.text_depth,
            mlp_width=2 * size.d_model,
            dropout=0.1,
            norm="pre",
            activation="gelu",
        )
        training = {"batch_size": batch_size}
        return f"{title}, last {length} words", {**words, **options}, model, training

    return task


def _translation_es(size: Size) -> tuple[str, dict[str, Any], Sizes, dict[str, Any]]:
    words = size.vocabulary_size // 2
    model = TranslatorConfig(
        source_vocabulary_size=words,
        target_vocabulary_size=words,
        length=12,
        d_model=size.d_model,
        mlp_width=2 * size.d_model,
        encoder_depth=size.text_depth // 2,
        decoder_depth=size.text_depth // 2,
        norm="pre",
        activation="gelu",
        dropout=0.1,
    )
    options = {"length": 12, "vocabulary_size": words, "held_out": 1_000, "rows": 20_000}
    return "English to Spanish, 12 words", options, model, {}


def _shakespeare(size: Size) -> tuple[str, dict[str, Any], Sizes, dict[str, Any]]:
    options = {"corpus": "tinyshakespeare", "tokenizer": "characters", "rows": 6_000}
    model = _lm(size, 65, 64)
    return "Shakespeare by characters, 64 tokens", {"length": 64, **options}, model, {}


def _stdlib(size: Size) -> tuple[str, dict[str, Any], Sizes, dict[str, Any]]:
    words = {"tokenizer": "bpe", "vocabulary_size": size.vocabulary_size}
    model = replace(_lm(size, size.vocabulary_size, 64), depth=size.text_depth)
    options = {"length": 64, "corpus": "stdlib", **words, "rows": 6_000}
    return "Python's library by byte pairs, 64 tokens", options, model, {}


def _mqar(pairs: int) -> Task:
    symbols = 2 * pairs
    sizes = {"pairs": pairs, "keys": symbols, "values": symbols}
    return _recall(f"Recall of {pairs} pairs", 2 * symbols, 3 * pairs, **sizes, rows=4_096)


def _recall(title: str, ids: int, tokens: int, **options: int) -> Task:
    def task(size: Size) -> tuple[str, dict[str, Any], Sizes, dict[str, Any]]:
        model = replace(_lm(size, ids, tokens), tied=False, start=0.1)
        training = {"epochs": 20, "batch_size": 64, "enough": SOLVED, "weight_decay": 0.0}
        return f"{title}, {tokens} tokens", options, model, training

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


TASKS: dict[str, tuple[str, str, Task]] = {
    "mqar8": ("mqar", "70k", _mqar(8)),
    "mqar16": ("mqar", "70k", _mqar(16)),
    "mqar32": ("mqar", "70k", _mqar(32)),
    "induction": (
        "induction",
        "70k",
        _recall("Induction", 16, 24, symbols=16, length=16, repeated=8, rows=4_096),
    ),
    "copy": (
        "copy",
        "70k",
        _recall(
            "Copying 8 to 12 symbols",
            34,
            32,
            symbols=32,
            shortest=8,
            length=12,
            room=16,
            rows=4_096,
        ),
    ),
    "two_hop": ("two_hop", "70k", _recall("Two hops", 24, 21, chains=3, symbols=6, rows=4_096)),
    "shakespeare": ("text", "300k", _shakespeare),
    "stdlib": ("text", "300k", _stdlib),
    "imdb": ("imdb", "300k", _reviews("IMDB reviews", 2, 32, 64)),
    "mnist": ("mnist", "300k", _mnist),
    "womens_clothing": (
        "womens_clothing",
        "300k",
        _reviews("Reviews of women's clothing", 5, 48, 16, rows=10_000),
    ),
    "translation_es": ("translation_es", "300k", _translation_es),
}
"""By name: the data set, the size of the models, and how a recipe reads the data."""

RECALL = ("mqar", "induction", "copy", "two_hop", "passkey")
"""Data sets that are drawn; the others are real."""


def _recipe_of(name: str) -> Callable[..., Recipe]:
    task, size_name, parts = TASKS[name]
    size = next(size for size in SIZES if size.name == size_name)

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

    build.__name__ = build.__qualname__ = f"atlas_{name}_{size.name}"
    build.__doc__ = f"Task {name} of the atlas, by a model of about {size.title}."
    return build


RECIPES: dict[str, Callable[..., Recipe]] = {
    build.__name__: build for name in TASKS for build in (_recipe_of(name),)
}
