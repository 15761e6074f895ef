"""Open a trained model and use it: `suffice.load`, which `suffice predict` calls.

What a folder holds decides the class: `TextClassifier`, `ImageClassifier`, `LanguageModel` or
`TextTranslator`. Each has the network of PyTorch as `network`, and takes what people have: texts,
and files of images.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from suffice.convert.sources import open_source
from suffice.data.dataset import ImagePreparation
from suffice.data.images import ENDINGS, decode
from suffice.data.reviews import PAD, START, UNKNOWN, rows_of_tokens
from suffice.data.table import READS
from suffice.data.translation import END, sentence_words
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.generate import Greedy, Sample, generate
from suffice.generate.translate import translate
from suffice.models import LM, Classifier, Translator, ViT, checkpoint
from suffice.models.architectures.hugging_face import read_config
from suffice.models.folder import CONFIG, StoredModel, is_ours, read
from suffice.models.kinds import KINDS, build_model
from suffice.spec import AttentionSpec
from suffice.text import Tokenizer, Words
from suffice.text.tokenizer import prompt_ids
from suffice.utils import hub
from suffice.utils.files import read_json

T = TypeVar("T")

WINNER = "winner.json"  # of a comparison: its best model, and why
MODELS = "models"  # folder of a comparison's trained models
BATCH = 64  # inputs that are read at once


@dataclass(frozen=True)
class Prediction:
    """The answer of a classifier to one input.

    Args:
        label: the most probable class.
        probabilities: probability of each class, by name, in the order of the classes; sums to 1.
    """

    label: str
    probabilities: dict[str, float]

    @property
    def probability(self) -> float:
        """Probability of the label."""
        return self.probabilities[self.label]


class _Summary:
    network: Any
    facts: dict[str, Any]

    def __repr__(self) -> str:
        parameters = sum(weights.numel() for weights in self.network.parameters())
        mechanism = self.facts.get("mechanism")
        parts = [f"{mechanism!r}"] if mechanism else []
        parts.append(f"{parameters:,} parameters")
        if classes := getattr(self, "classes", ()):
            parts.append(f"{len(classes)} classes")
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _Classifier(_Summary):
    network: Any
    classes: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    reads: ClassVar[str]

    def prepare(self, inputs: Sequence[Any]) -> dict[str, Tensor]:
        """Return what the network is called with."""
        raise NotImplementedError

    def predict(self, inputs: Iterable[Any], *, batch_size: int = BATCH) -> list[Prediction]:
        """Return the prediction of each input, see `stream`."""
        return list(self.stream(inputs, batch_size=batch_size))

    def stream(self, inputs: Iterable[Any], *, batch_size: int = BATCH) -> Iterator[Prediction]:
        """Yield the prediction of each input, while inputs are read in batches.

        Args:
            inputs: a list or any iterable of texts, or of images; see `prepare`.
            batch_size: inputs that are computed at once, >= 1; it changes nothing but speed.

        Raises:
            ConfigError: if batch_size < 1.
            DataError: if an input is none, or `inputs` is one text or a table instead of a list.
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size}; give at least 1.")
        _check_list(inputs, self.reads)
        return self._answer(inputs, batch_size)

    def _answer(self, inputs: Iterable[Any], batch_size: int) -> Iterator[Prediction]:
        for batch in _batches(inputs, batch_size):
            prepared = {name: t.to(self.device) for name, t in self.prepare(batch).items()}
            with torch.inference_mode():
                shares = self.network(**prepared).float().softmax(dim=-1).cpu()
            for row in shares.tolist():
                best = max(range(len(row)), key=row.__getitem__)
                yield Prediction(self.classes[best], dict(zip(self.classes, row, strict=True)))

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return next(self.network.parameters()).device


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TextClassifier(_Classifier):
    """A classifier of texts.

    Args:
        network: tokens [B, T] and valid [B, T] to logits [B, classes].
        classes: names of the classes, in the order of the logits.
        tokenizer: None where the folder holds none; such a model cannot read texts.
        facts: other entries of the folder's config, such as the recipe.

    Example:
        A network without training, so the answer is of no use:

        >>> from suffice import preset
        >>> from suffice.models import ClassifierConfig
        >>> words = Words(("<pad>", "<start>", "<unknown>", "good", "bad"), length=4)
        >>> sizes = dict(vocabulary_size=5, length=4, num_classes=2, d_model=8, depth=1)
        >>> network = ClassifierConfig(**sizes, mlp_width=8).build(preset("standard", 8, 2)).eval()
        >>> model = TextClassifier(network=network, classes=("no", "yes"), tokenizer=words)
        >>> list(model.predict(["Good!"])[0].probabilities)
        ['no', 'yes']
    """

    network: Classifier
    tokenizer: Tokenizer | None = None
    reads: ClassVar[str] = "text"

    def prepare(self, inputs: Sequence[str]) -> dict[str, Tensor]:
        """Return tokens int64 [B, T] and valid bool [B, T] of texts."""
        reads = isinstance(self.tokenizer, Words) or READS in self.facts
        if self.tokenizer is None or not reads:
            raise ConfigError(
                "this model has no vocabulary of words, so it cannot read texts; call its "
                "`network` with ids, or train it by `suffice compare`, which keeps the vocabulary."
            )
        _check_texts(inputs)
        if isinstance(self.tokenizer, Words):
            tokens, valid = self.tokenizer.rows(inputs)
        else:
            length, reads = self.network.config.length, self.facts[READS]
            tokens, valid, _ = rows_of_tokens(self.tokenizer, inputs, length, reads)
        return {"tokens": tokens, "valid": valid}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ImageClassifier(_Classifier):
    """A classifier of images.

    Args:
        network: images [B, C, S, S] to logits [B, classes].
        classes: names of the classes, in the order of the logits.
        size: channels, height and width that an image is decoded to.
        preparation: preparation of the pixels; None where the folder does not tell.
        facts: other entries of the folder's config, such as the recipe.
    """

    network: ViT
    size: tuple[int, int, int]
    preparation: ImagePreparation | None = None
    reads: ClassVar[str] = "image"

    def prepare(self, inputs: Sequence[Any]) -> dict[str, Tensor]:
        """Return images float32 [B, C, S, S] of JPEG or PNG: paths, bytes, or images of Pillow."""
        pixels = torch.stack([self._pixels(image) for image in inputs])
        return {"images": self._prepare(pixels)}

    def _pixels(self, image: Any) -> Tensor:
        channels, height, width = self.size
        if height != width:
            raise ConfigError(f"images of {height}x{width} pixels are not square.")
        pixels = torch.from_numpy(decode(_content(image), height, _name(image)))
        if channels == 1:
            return pixels.float().mean(dim=0, keepdim=True)
        return pixels.float()

    def _prepare(self, pixels: Tensor) -> Tensor:
        if self.preparation is None:
            raise ConfigError(
                "this model's folder does not say how pixels are scaled, so it cannot read images; "
                "call its `network` with tensors, or train it by `suffice compare`."
            )
        return self.preparation(pixels * (self.preparation.white / 255.0))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LanguageModel(_Summary):
    """A language model and its tokenizer.

    Args:
        network: tokens [B, T] to logits [B, T, V].
        tokenizer: None where the folder holds none.
        facts: other entries of the folder's config.
    """

    network: LM
    tokenizer: Tokenizer | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    reads: ClassVar[str] = "prompt"

    def generate(
        self,
        prompt: str = "",
        *,
        max_new_tokens: int = 100,
        temperature: float = 0.8,
        seed: int = 0,
    ) -> str:
        """Return the prompt and its continuation.

        Args:
            prompt: text to continue.
            max_new_tokens: maximum of new tokens.
            temperature: divisor of the logits: below 1 favours likely tokens; 0 takes the best.
            seed: seed of the sampling.
        """
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise ConfigError("this language model has no tokenizer; call its `network` with ids.")
        _check_texts([prompt])
        ids = prompt_ids(tokenizer, prompt)
        result = generate(
            self.network,
            [ids],
            max_new_tokens=max_new_tokens,
            sampling=Sample(temperature=temperature, seed=seed) if temperature else Greedy(),
            stop=() if tokenizer.end is None else (tokenizer.end,),
        )
        new = [id_ for id_ in result.row(0)[len(ids) :] if id_ != tokenizer.end]
        return prompt + tokenizer.decode(new)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TextTranslator(_Summary):
    """A translator with the vocabularies of both sides.

    Args:
        network: source [B, S] and target [B, T] to logits [B, T, V].
        tokenizer: tokenizer of the target's words.
        source_tokenizer: tokenizer of the source's words.
        facts: other entries of the folder's config.
    """

    network: Translator
    tokenizer: Words
    source_tokenizer: Words
    facts: dict[str, Any] = field(default_factory=dict)
    reads: ClassVar[str] = "sentence"

    def translate(self, texts: Iterable[str], *, batch_size: int = BATCH) -> Iterator[str]:
        """Yield the translation of each text, words in lower case and without punctuation."""
        _check_list(texts, self.reads)
        return self._translations(texts, batch_size)

    def _translations(self, texts: Iterable[str], batch_size: int) -> Iterator[str]:
        length, end = self.network.config.length, self.tokenizer.words.index(END)
        for batch in _batches(texts, batch_size):
            _check_texts(batch)
            rows = [self._ids(text)[: length - 1] or [START] for text in batch]
            generated = translate(
                self.network, rows, start=START, max_new_tokens=length - 1, stop=[end], pad=PAD
            )
            for row in generated.new.tolist():
                ids = row[: row.index(end)] if end in row else row
                yield self.tokenizer.decode(ids)

    def _ids(self, text: str) -> list[int]:
        ids = {word: number for number, word in enumerate(self.source_tokenizer.words)}
        return [ids.get(word, UNKNOWN) for word in sentence_words(text)]


Loaded = TextClassifier | ImageClassifier | LanguageModel | TextTranslator


def load(path: Path | str, *, device: torch.device | str = "cpu") -> Loaded:
    """Open a trained model for use.

    Args:
        path: a comparison's folder, which stands for its best model; a model in it
            (`runs/mine/models/efficient-h4-s0`, in short `runs/mine/efficient-h4-s0`); a folder of
            `suffice train`, `convert`, `heal`, `quantise` or `export --format hf`; or a model of
            transformers or llama2.c, or "hf:ORG/NAME[@REVISION]" of the Hugging Face hub.
        device: device of the weights.

    Raises:
        CheckpointError: if there is no model, or its files do not fit each other.
        ConfigError: if a library is missing that reads its text.
    """
    path = locate(path)
    if path.suffix == ".safetensors":
        return _of_stored(_read_earlier(path), device)
    if path.is_dir() and (path / CONFIG).is_file() and is_ours(read_config(path)):
        return _of_stored(read(path, device), device)
    _refuse_graph(path)
    source = open_source(path)
    config = read_config(path) if path.is_dir() else {}
    names = config.get("id2label")
    count = getattr(source.model.config, "num_classes", None)
    named = isinstance(names, dict) and len(names) == count
    classes = list(names.values()) if named else None
    facts = {**source.facts, **({"classes": classes} if classes else {})}
    kind = next(kind for kind, sizes in KINDS.items() if type(source.model.config) is sizes)
    stored = StoredModel(model=source.model, kind=kind, tokenizer=source.tokenizer, facts=facts)
    return _of_stored(stored, device)


def locate(path: Path | str) -> Path:
    """Return the model that a path stands for; a comparison's folder stands for its best one."""
    path = hub.local(path)
    if (path / WINNER).is_file():
        name = read_json(path / WINNER).get("model")
        if not isinstance(name, str) or not (path / name).resolve().is_relative_to(path.resolve()):
            raise CheckpointError(f"{path / WINNER} names no model of this folder; compare again.")
        return path / name
    if not path.exists() and (path.parent / MODELS / path.name).exists():
        return path.parent / MODELS / path.name
    if (path / MODELS).is_dir() and not (path / CONFIG).is_file():
        names = ", ".join(sorted(each.name for each in (path / MODELS).iterdir())[:4])
        raise CheckpointError(
            f"the comparison in {path} is not finished, so it has no best model; finish it with "
            f"--resume, or name one of its models: {names or 'there is none so far'}."
        )
    return path


def _refuse_graph(path: Path) -> None:
    if (path / "manifest.json").is_file() and not (path / CONFIG).is_file():
        raise ConfigError(
            f"{path} is an export for another program, a graph and not a model; write text with "
            "`suffice run`, or load the folder that it was exported from."
        )


def _of_stored(stored: StoredModel, device: torch.device | str) -> Loaded:
    model, facts = stored.model.to(device).eval(), stored.facts
    if isinstance(model, LM):
        return LanguageModel(network=model, tokenizer=stored.tokenizer, facts=facts)
    if isinstance(model, Translator):
        words, source = stored.tokenizer, stored.source_tokenizer
        if not isinstance(words, Words) or not isinstance(source, Words):
            raise CheckpointError("this translator's folder holds no vocabularies; train it again.")
        return TextTranslator(network=model, tokenizer=words, source_tokenizer=source, facts=facts)
    count = model.config.num_classes
    if count is None or getattr(model.config, "pooling", "") == "none":
        raise ConfigError(
            "this model has no classes of a text: it makes a vector of a text, or logits of each "
            "token; call the model that suffice.convert.sources.open_source returns."
        )
    classes = facts.get("classes") or [str(number) for number in range(count)]
    if len(classes) != count:
        raise CheckpointError(f"{len(classes)} names for {count} classes; give the folder whole.")
    named = {"network": model, "classes": tuple(map(str, classes)), "facts": facts}
    if isinstance(model, Classifier):
        return TextClassifier(**named, tokenizer=stored.tokenizer)
    return ImageClassifier(**named, **_preparation(model, facts.get("preparation")))


def _preparation(model: ViT, described: Any) -> dict[str, Any]:
    side = model.config.image_size
    if not isinstance(described, dict):
        return {"size": (model.config.channels, side, side)}
    fields = dict(described)
    try:
        size = tuple(int(fields.pop(name)) for name in ("channels", "height", "width"))
        values = {n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()}
        return {"size": size, "preparation": ImagePreparation(**values)}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the preparation of images in {CONFIG} is damaged ({error}); give the folder whole."
        ) from error


CONFIG_BY_FIELD = {
    "image_size": "image classifier",
    "num_classes": "text classifier",
    "tied": "language model",
}
"""The first of these fields that sizes have tells the kind of a model saved as one file."""


def _read_earlier(path: Path) -> StoredModel:
    """Return a model of an earlier comparison: one file of weights, without a vocabulary."""
    _, metadata = checkpoint.load(path)
    match metadata.get("config"):
        case {"recipe": {"model": dict() as sizes} as recipe, **config}:
            for name, kind in CONFIG_BY_FIELD.items():
                if name in sizes:
                    facts = {"task": recipe.get("task"), "recipe": recipe}
                    model = _build(path, kind, sizes, config.get("specs"))
                    return StoredModel(model=model, kind=kind, facts=facts)
    raise CheckpointError(
        f"{path.name} is not a classifier, image classifier or language model of suffice compare."
    )


def _build(path: Path, kind: str, sizes: dict[str, Any], specs: Any) -> Any:
    try:
        legal = KINDS[kind].__dataclass_fields__
        config = KINDS[kind].from_json({n: size for n, size in sizes.items() if n in legal})
        model = build_model(config, [AttentionSpec.from_json(spec) for spec in specs])
    except (ConfigError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{path.name} does not identify its model ({error!s:.200})."
        ) from error
    checkpoint.load_model_into(path, model)
    return model


def _check_list(inputs: Any, kind: str) -> None:
    if isinstance(inputs, (str, bytes, bytearray, Path)):
        what = type(inputs).__name__
        raise DataError(f"this is one {kind} ({what}) and not a list of them; give [{kind}].")
    if isinstance(inputs, Mapping) or hasattr(inputs, "columns") or hasattr(inputs, "column_names"):
        raise DataError(
            f"a table ({type(inputs).__name__}) has several columns; give the one to read, such as "
            f"table[{kind!r}].tolist()."
        )
    if not isinstance(inputs, Iterable):
        raise DataError(f"{type(inputs).__name__} is not a list of inputs; give [{kind}, ...].")


def _check_texts(texts: Sequence[Any]) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise DataError(f"{text!r:.60} is not a text; give a str.")


def _batches(inputs: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(inputs)
    while batch := list(islice(iterator, size)):
        yield batch


def _content(image: Any) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, (str, Path)):
        try:
            return Path(image).read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {image} ({error.strerror}); give an image.") from error
    if hasattr(image, "save"):  # of Pillow
        stream = io.BytesIO()
        image.convert("RGB").save(stream, format="PNG")
        return stream.getvalue()
    raise DataError(
        f"{type(image).__name__} is not an image; give a path ending in {', '.join(ENDINGS)}, "
        "bytes or an image of Pillow."
    )


def _name(image: Any) -> str:
    return str(image) if isinstance(image, (str, Path)) else "the image"
