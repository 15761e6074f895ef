"""Recipes on the user's own files."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from suffice.data import TASKS
from suffice.data.images import image_classes
from suffice.data.reviews import RULES
from suffice.data.table import COLUMNS, one_word_length, read_files, share_of
from suffice.errors import ConfigError, DataError, check_known, unknown
from suffice.models import ViTConfig
from suffice.models.pretrained import classifier_of
from suffice.ops.dispatch import capabilities
from suffice.text import BPE, Tokenizer, load_tokenizer
from suffice.train.recipes.base import Recipe
from suffice.train.recipes.text import classifier
from suffice.train.settings import Training
from suffice.utils import hub

OPTION = "path"  # of the tasks that can read the user's own files
FILE_OPTIONS = ("columns", "groups", "test", "validation", "drop_missing", "encoding")  # of tables
TABLE, PICTURES = "table", "pictures"
START_RATE = 5e-5  # from pretrained weights: the largest that BERT's authors tried
READ_WHOLE = 0.95  # share of the texts that a start reads to their end, where it can
SAMPLED = 2_000  # texts whose length is looked at
OF_ANY = "A table of texts and classes"
"""The beginning of the title until a file is named."""


def table(scale: str = "paper") -> Recipe:
    """A table of texts and classes: two layers, d 64, the last 64 words, minutes on two cores.

    Of no paper. Unlike in the recipes of the papers, padding is not read: attention and the mean
    over positions leave it out. The number of classes is that of the file, see `of_user`.
    """
    recipe = classifier(
        "table",
        "",
        vocabulary_size=20_000,
        length=64,
        num_classes=2,
        d_model=64,
        depth=2,
        epochs=5,
        reads_padding=False,
    )
    options = (*recipe.task_options, ("words", "unicode"))
    return _titled(replace(recipe, task_options=options)).at(scale)


FIXED = {
    *("num_classes", "console", "path", "columns", "test", "validation", "stratify"),
    *("groups", "drop_missing", "encoding", "words", "reads"),
}
"""Settings that the data decide, or that have options of their own."""
OF_ANY_FOLDER = "A folder of images"


def pictures(scale: str = "paper") -> Recipe:
    """A folder of images by class: a ViT of two blocks, d 64, 64 patches of 32x32 pixels.

    Of no paper. The number of classes is that of the folder, see `of_user`; larger images are by
    `image_size`, which also sets what they are reduced to.
    """
    recipe = Recipe(
        name="pictures",
        title="",
        task="image_folder",
        task_options=(("side", 32),),
        model=ViTConfig(
            image_size=32,
            patch_size=4,
            num_classes=2,
            d_model=64,
            depth=2,
            mlp_width=128,
            channels=3,
            dropout=0.1,
        ),
        training=Training(epochs=10, batch_size=64, learning_rate=1e-3, weight_decay=1e-4),
        num_heads=4,
    )
    return _titled(recipe).at(scale)


BPE_NAME = "bpe"
TOKENIZERS = {"words": "unicode", "characters": "characters", BPE_NAME: BPE_NAME}
"""The option `words` of a table for each --tokenizer; any other name is a tokenizer's folder."""


def _tokenizer_of(texts: Sequence[str], *, name: str, vocabulary_size: int) -> Tokenizer:
    """Return byte pairs of some texts if the name is "bpe", or else the tokenizer of a folder."""
    if name == BPE_NAME:
        return BPE.train(texts, vocabulary_size, at_most=True)
    return load_tokenizer(name)


def loadable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a task with what makes the tokenizer in the place of its name."""
    name = options.get("words")
    if name is None or name in RULES:
        return dict(options)
    size = options["vocabulary_size"]
    return {**options, "words": partial(_tokenizer_of, name=name, vocabulary_size=size)}


def tokenizer_folder(options: Mapping[str, Any]) -> str | None:
    """Return the folder of the tokenizer that a table is read with; None where it is made."""
    name = options.get("words")
    return None if name is None or name == BPE_NAME or name in RULES else name


LINKED = {"image_size": "side"}  # sizes of a model that are options of its data, too


def of_user(recipe: Recipe, path: str, columns: str | None = None, **parts: Any) -> Recipe:
    """Return a recipe that reads the user's files instead of the task's own.

    `parts` are options of `suffice.data.table.table`; tokenizer, see `TOKENIZERS`; and start, see
    `_started`.

    Example:
        >>> from suffice.train.recipes.text import amazon
        >>> files_of(of_user(amazon(), "all.jsonl.gz")), files_of(amazon())
        (['all.jsonl.gz'], [])
    """
    if not _reads(recipe.task):
        able = " or ".join(name for name in TASKS if _reads(name))
        raise ConfigError(
            f"--data {path}: task {recipe.task} reads its own data; leave it out, or take a recipe "
            f"on {able}."
        )
    parts = {name: value for name, value in parts.items() if value is not None}
    before, recipe = recipe.start, _started(recipe, parts.pop("start", None))
    options = {**dict(recipe.task_options), OPTION: path}
    if recipe.task == TABLE:
        options["columns"] = columns or options.get("columns", COLUMNS)
        tokenizer = parts.pop("tokenizer", None)
        options |= parts
        if "groups" in options and parts.get("stratify"):
            raise ConfigError(
                "--stratify with --groups: whole groups are in one part, whatever their classes; "
                "leave --stratify out."
            )
        files = read_files(path, **{n: options[n] for n in FILE_OPTIONS if n in options})
        if tokenizer is not None:
            if recipe.start is not None:
                raise ConfigError(f"--tokenizer {tokenizer}: the encoder of --start has its own.")
            if tokenizer not in TOKENIZERS and not Path(tokenizer).is_dir():
                raise unknown("tokenizer", tokenizer, [*TOKENIZERS, "the folder of a tokenizer"])
            options["words"] = TOKENIZERS.get(tokenizer, tokenizer)
        elif one_word_length(files.pairs) is not None and options["words"] == "unicode":
            options["words"] = TOKENIZERS["characters"]
        sizes = _sizes_of_tokenizer(recipe, options, files.pairs, fresh=recipe.start != before)
        options |= sizes
        model = replace(recipe.model, num_classes=len(files.classes), **sizes)
        return _titled(replace(recipe, model=model, task_options=tuple(options.items())))
    if recipe.name == PICTURES:
        path = str(Path(path).absolute()) if Path(path).is_dir() else path
        options[OPTION] = path
        count = len(image_classes(path, options.get("classes")))
        recipe = replace(recipe, model=replace(recipe.model, num_classes=count))
    given = {"columns": columns, **parts}
    if wrong := [name for name, value in given.items() if value is not None]:
        option = wrong[0].replace("_", "-")
        raise ConfigError(
            f"--{option} {given[wrong[0]]}: task {recipe.task} has its own; leave it out, or "
            f"take --task {TABLE}."
        )
    return _titled(replace(recipe, task_options=tuple(options.items())))


def _started(recipe: Recipe, start: str | None) -> Recipe:
    """Return a recipe whose models start from an encoder, and read the first tokens as it does.

    The encoder is a folder of transformers or "hf:ORG/NAME[@REVISION]"; None changes nothing.
    """
    if start is None or (folder := hub.local(start).absolute()) == recipe.start:
        return recipe
    if recipe.task != TABLE:
        raise ConfigError(f"--start {start}: only a --task {TABLE} starts from an encoder.")
    sizes, specs = classifier_of(folder)
    tokenizer: Any = load_tokenizer(folder)
    if tokenizer.vocabulary_size > sizes.vocabulary_size:
        raise ConfigError(f"--start {start}: its tokenizer has more tokens than it; give its own.")
    tokenizer.check_case()
    options = dict(recipe.task_options) | {"words": str(folder), "reads": "start"}
    training = {
        "epochs": 4,  # the most that BERT's authors tried, as were 32 rows
        "batch_size": 32,
        "learning_rate": START_RATE,
        "weight_decay": 0.01,
        "warmup": 0.1,
        "schedule": "cosine",
        "clip": 1.0,
        # a step of MiniLM takes 0.4 of the time where the processor multiplies tiles of bfloat16
        "dtype": "bfloat16" if "amx_bf16" in capabilities() else "float32",
    }
    return replace(
        recipe,
        model=sizes,
        training=replace(recipe.training, **training),
        num_heads=specs[0].num_heads,
        task_options=tuple(options.items()),
    )


def _sizes_of_tokenizer(
    recipe: Recipe, options: dict[str, Any], pairs: Sequence[tuple[str, str]], *, fresh: bool
) -> dict[str, int]:
    """Return the vocabulary of a tokenizer's folder; of a fresh start, the tokens of a row.

    A row holds `READ_WHOLE` of the texts, and at most the tokens that the encoder reads.
    """
    folder = tokenizer_folder(options)
    if folder is None or (recipe.start is not None and not fresh):
        return {}
    tokenizer: Any = load_tokenizer(folder)
    if recipe.start is None:
        return {"vocabulary_size": tokenizer.vocabulary_size}
    texts = [text for text, _ in pairs[:: -(-len(pairs) // SAMPLED)]]
    lengths = sorted(map(len, tokenizer.encode_many(texts)))
    length = lengths[int(READ_WHOLE * (len(lengths) - 1))] + sum(map(len, tokenizer.around))
    return {"length": min(recipe.model.length, -(-length // 8) * 8)}


def usual_folds(recipe: Recipe, seeds: int | None) -> int | None:
    """Return the folds of a table that is too small for a test part: the number of seeds, or 5.

    None for other tasks, a table with a test part of the user's, and one of `FOLDS_BELOW` rows. The
    number of seeds is None where it is not fixed before.
    """
    options = dict(recipe.task_options)
    if recipe.task != TABLE or "test" in options or OPTION not in options:
        return None
    chosen = {name: options[name] for name in FILE_OPTIONS if name in options}
    if len(read_files(options[OPTION], **chosen).pairs) >= FOLDS_BELOW:
        return None
    return seeds if seeds is not None and 3 <= seeds <= 10 else FOLDS  # noqa: PLR2004


FOLDS = 5  # unless the number of seeds says otherwise
FOLDS_BELOW = 20_000  # rows, of which a tenth are a test part that decides about one point


def with_settings(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return a recipe with other sizes, hyper-parameters or options of its data.

    A name that several of them have, such as `length`, changes all.

    Example:
        >>> recipe = with_settings(table(), {"length": 128, "learning_rate": 3e-4})
        >>> recipe.model.length, dict(recipe.task_options)["length"], recipe.training.learning_rate
        (128, 128, 0.0003)
    """
    options = inspect.signature(TASKS[recipe.task]).parameters
    model, training = (
        set(type(part).__dataclass_fields__) for part in (recipe.model, recipe.training)
    )
    fixed = FIXED if recipe.start is None else FIXED | (model - {"length", "dropout"})
    legal = (model | training | set(options)) - fixed
    for name in values:
        check_known("setting", name, legal)
    linked = {LINKED[n]: v for n, v in values.items() if n in LINKED and LINKED[n] in options}
    values = {**values, **linked}
    values = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
    changed = {n: v for n, v in values.items() if n in options}
    title = recipe.title
    for name, value in values.items():
        if name != "epochs":
            title = _noted(title, name, value)
    return _titled(
        replace(
            recipe,
            title=title,
            model=replace(recipe.model, **{n: v for n, v in values.items() if n in model}),
            training=replace(recipe.training, **{n: v for n, v in values.items() if n in training}),
            task_options=tuple({**dict(recipe.task_options), **changed}.items()),
        )
    )


def _noted(title: str, name: str, value: Any) -> str:
    """Return a title with a setting, in the place of an earlier value of it."""
    note, earlier = f"{name}={value}", re.compile(rf", {re.escape(name)}=[^,]*")
    if note in title:
        return title
    return (
        earlier.sub(lambda _: f", {note}", title) if earlier.search(title) else f"{title}, {note}"
    )


def _titled(recipe: Recipe) -> Recipe:
    """Return a recipe on the user's own data with the title of its sizes; others as they are."""
    model, path = recipe.model, dict(recipe.task_options).get(OPTION)
    if recipe.name == TABLE:
        which = OF_ANY if path is None else f"{Path(path).name}, {model.num_classes} classes"
        words = dict(recipe.task_options).get("words")
        part = "last" if recipe.start is None else f"from {recipe.start.name}, first"
        read = f"{part} {model.length} {'words' if words in RULES else 'tokens'}"
        title = f"{which}, {model.depth} blocks, d_model {model.d_model}, {read}"
    elif recipe.name == PICTURES:
        folder = None if path is None else Path(path).name
        which = (
            OF_ANY_FOLDER if folder is None else f"Images of {folder}, {model.num_classes} classes"
        )
        size = f"{model.image_size}x{model.image_size} pixels"
        title = f"{which}, ViT of {model.depth} blocks, d_model {model.d_model}, {size}"
    else:
        return recipe
    return replace(recipe, title=title)


def restored(recipe: Recipe, stored: Mapping[str, Any]) -> Recipe:
    """Return a recipe with the settings that a plan.json holds of it."""
    try:
        parts = {name: getattr(recipe, name) for name in ("model", "training")}
        kept = {
            name: replace(
                part, **{n: tuple(v) if isinstance(v, list) else v for n, v in stored[name].items()}
            )
            for name, part in parts.items()
        }
        options = tuple((str(name), value) for name, value in stored["task_options"])
        if recipe.task == TABLE and "words" not in dict(options):
            options += (("words", "ascii"),)  # as all tables were read before there was a choice
        kept["num_heads"] = stored.get("num_heads", recipe.num_heads)
        return replace(recipe, **kept, title=str(stored["title"]), task_options=options)
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"the comparison's plan.json does not describe recipe {recipe.name} ({error!s:.120}); "
            "start another comparison."
        ) from error


def files_of(recipe: Recipe) -> list[str]:
    """Return the paths of all the user's files that a recipe reads."""
    options = dict(recipe.task_options)
    paths = [options.get(name) for name in (OPTION, "test", "validation")]
    paths.append(tokenizer_folder(options))
    return [str(path) for path in paths if path is not None and share_of(path) is None]


def _reads(task: str) -> bool:
    return OPTION in inspect.signature(TASKS[task]).parameters
