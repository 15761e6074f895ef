"""The class of tokenizers, their files, and incremental detokenization."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from suffice.data.files import atomically
from suffice.errors import ConfigError, DataError
from suffice.text.documents import read_text
from suffice.utils.files import check_links, parse_json


class Tokenizer:
    """Text to token ids and back; `Words`, `Characters` and `BPE` are three.

    What a text contains never becomes a special token: the ids `begin` and `end` are put between
    documents by whoever joins them, and a text that spells their names is ordinary text.
    """

    begin: int | None = None  # id before each document
    end: int | None = None  # id after each document
    description: str  # content of a tokenizer.json, in the format of the tokenizers library
    vocabulary_size: int  # ids are 0 .. vocabulary_size - 1
    fingerprint: str  # the sha256 of all that decides an encoding; files of tokens keep it

    def __init__(
        self, description: str, vocabulary_size: int, facts: str | None = None, **options: Any
    ) -> None:
        self.description, self.vocabulary_size = description, vocabulary_size
        self._options = options  # entries of tokenizer_config.json
        self.fingerprint = hashlib.sha256((facts or description).encode()).hexdigest()

    @property
    def special(self) -> dict[str, int]:
        """The ids of special tokens by name; a chat template spells them."""
        return {}

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without `begin` and `end`."""
        raise NotImplementedError

    def encode_many(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Yield the ids of each text in turn; several may be encoded at once."""
        return map(self.encode, texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids; ConfigError if one is not in the vocabulary."""
        raise NotImplementedError

    def save(self, folder: Path | str) -> None:
        """Write tokenizer.json and tokenizer_config.json, for `load_tokenizer` and transformers."""
        facts: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        facts |= {"clean_up_tokenization_spaces": False, "bos_token": None, "eos_token": None}
        facts |= self._options
        contents = {DESCRIPTION: self.description, NAMES: json.dumps(facts, indent=2) + "\n"}
        for name, content in contents.items():
            with atomically(Path(folder) / name, advice=ADVICE) as temporary:
                temporary.write_text(content, encoding="utf-8", newline="\n")


def check_text(text: str) -> None:
    """Refuse what no tokenizer can encode: no str (ConfigError), half a surrogate (DataError)."""
    if not isinstance(text, str):
        raise ConfigError(f"{text!r:.60} is not a text; give a str.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"a text cannot be encoded ({error}); repair it.") from error


def check_ids(ids: Sequence[int], vocabulary_size: int) -> None:
    """Raise ConfigError, naming the first, for ids that no token has."""
    wrong = next((id_ for id_ in ids if not 0 <= id_ < vocabulary_size), None)
    if wrong is not None:
        raise ConfigError(
            f"id {wrong!r:.60} is not in the vocabulary; give ids of 0 to {vocabulary_size - 1:,}."
        )


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the tokens of a prompt, behind the token that begins a document.

    An empty prompt becomes the token that begins or ends a document, else a line break, else the
    first token of the vocabulary.
    """
    ids = tokenizer.encode(prompt)
    if tokenizer.begin is not None:
        return [tokenizer.begin, *ids]
    if not ids and tokenizer.end is not None:
        return [tokenizer.end]  # a document follows the end of another
    if ids:
        return ids
    try:
        return tokenizer.encode("\n") or [0]
    except DataError:
        return [0]  # an alphabet without line breaks


def chat_template(folder: Path) -> str | None:
    """Return the chat template in a tokenizer's folder; of several the one named default.

    It is the content of chat_template.jinja or the entry of tokenizer_config.json.
    """
    if (folder / TEMPLATE).is_file():
        return read_text(folder / TEMPLATE)
    if not (folder / NAMES).is_file():
        return None
    source = read_object(folder / NAMES)[1].get("chat_template")
    if isinstance(source, list):
        named = {one.get("name"): one.get("template") for one in source if isinstance(one, dict)}
        source = named.get("default")
    return source if isinstance(source, str) else None


TEMPLATE = "chat_template.jinja"
DESCRIPTION = "tokenizer.json"  # in the format of the tokenizers library
NAMES = "tokenizer_config.json"  # which token begins a document and which ends it

ADVICE = "give another folder"


def read(folder: Path | str) -> tuple[str, dict[str, Any], str | None, str | None]:
    """Return the description of a tokenizer, as text and parsed, and its begin and end tokens."""
    folder = Path(folder)
    if folder.is_dir():
        check_links(folder)
    text, description = read_object(folder / DESCRIPTION)
    _, facts = read_object(folder / NAMES)
    begin, end = (_name(facts, key, folder / NAMES) for key in ("bos_token", "eos_token"))
    return text, description, begin, end


def read_object(path: Path) -> tuple[str, dict[str, Any]]:
    """Return a file of one JSON object, as text and parsed."""
    text = read_text(path)
    return text, parse_object(text, path)


def parse_object(text: str, name: object) -> dict[str, Any]:
    """Return the JSON object that a text spells, or raise DataError."""
    try:
        value = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name} is not JSON ({error}); give the file complete.") from error
    if not isinstance(value, dict):
        raise DataError(f"{name} is not a JSON object; give the file of a tokenizer.")
    return value


def _name(facts: dict[str, Any], key: str, path: Path) -> str | None:
    value = facts.get(key)
    value = value.get("content") if isinstance(value, dict) else value
    if value is not None and not isinstance(value, str):
        raise DataError(f"{path} gives {key} as {value!r:.80}; a token's text or null is due.")
    return value


def build(text: str, name: object) -> Any:
    """Return the byte-pair tokenizer that the content of a tokenizer.json describes.

    It encodes texts whole, whatever the description says of truncation and padding, and the names
    of special tokens in a text are ordinary text to it.
    """
    import tokenizers

    description = parse_object(text, name)
    _refuse(description, name)
    _refuse_bombs(description, name)
    untruncated = json.dumps({**description, "truncation": None, "padding": None})
    with library_errors(name):
        tokenizer = tokenizers.Tokenizer.from_str(untruncated)
    tokenizer.encode_special_tokens = True
    return tokenizer


def description_of(
    *,
    model: dict[str, Any],
    decoder: dict[str, Any],
    pre_tokenizer: dict[str, Any] | None = None,
    normalizer: dict[str, Any] | None = None,
    added_tokens: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Return a tokenizer in the format of the tokenizers library."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added_tokens),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def template(id_: int, token: str) -> dict[str, Any]:
    """Return the post-processor of the tokenizers library that puts a token before a text."""
    special = {"SpecialToken": {"id": token, "type_id": 0}}
    text, other = ({"Sequence": {"id": one, "type_id": n}} for n, one in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [special, text],
        "pair": [special, text, other],
        "special_tokens": {token: {"id": token, "ids": [id_], "tokens": [token]}},
    }


def rows_of(
    description: dict[str, Any], length: int, *, start: int, token: str, pad: int, pad_token: str
) -> dict[str, Any]:
    """Return a description that gives a start and the last tokens of a text, padded in front.

    Rows have a token more than the model reads, which is the last `length` of them: the start
    stands before every text, an empty one too, and only a text that fills the row loses it.
    """
    left = {"direction": "Left"}
    cut = {"max_length": length + 1, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": length + 1}, "pad_to_multiple_of": None, "pad_type_id": 0}
    return {
        **description,
        "truncation": left | cut,
        "padding": left | padding | {"pad_id": pad, "pad_token": pad_token},
        "post_processor": template(start, token),
    }


def row_options(length: int, pad_token: str) -> dict[str, Any]:
    """Return what transformers needs to know of such rows, for tokenizer_config.json."""
    return {
        "pad_token": pad_token,
        "padding_side": "left",
        "truncation_side": "left",
        "model_max_length": length + 1,
        "model_input_names": ["input_ids", "attention_mask"],
    }


def special_token(id_: int | None, content: str) -> dict[str, Any]:
    """Return a special token in the format of the tokenizers library."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id_, "content": content, **flags, "special": True}


@contextlib.contextmanager
def library_errors(name: object) -> Iterator[None]:
    """Raise a DataError that names the tokenizer for what the library raises in the block."""
    try:
        yield
    except BaseException as error:
        # The library raises nothing narrower than Exception, and PanicException, which is none.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"the tokenizers library cannot use {name} ({error!s:.200}); give the file of a "
            "tokenizer complete, or install a newer library."
        ) from error


def _refuse(description: dict[str, Any], name: object) -> None:
    """Refuse what the library takes although the tokenizer would be random or ambiguous."""
    model = description.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") not in ("BPE", "WordPiece"):
        kind = model.get("type") if isinstance(model, dict) else model
        raise DataError(
            f"{name} describes a tokenizer of type {kind!r:.40}; BPE or WordPiece is due."
        )
    if model.get("dropout"):
        raise DataError(
            f"{name} drops merges at random (dropout {model['dropout']!r:.20}), so that a text has "
            "many encodings; set dropout to null in it."
        )
    ids = model.get("vocab")
    if not isinstance(ids, dict) or len(set(map(str, ids.values()))) < len(ids):
        raise DataError(f"{name} has no vocabulary, or one that gives two tokens the same id.")


MAX_ADDED_TOKENS = 1 << 17  # the library takes 3 s for them
MAX_TOKEN_CHARACTERS = 4096
MAX_GROWTH, MAX_STEPS = 64, 64  # a file of 1 KB could else make terabytes of a letter


def _refuse_bombs(description: dict[str, Any], name: object) -> None:
    """Refuse what makes a short text long, or the library slow."""
    model, added = description["model"], description.get("added_tokens")
    affixes = (model.get(one) for one in ("continuing_subword_prefix", "end_of_word_suffix"))
    longest = max(len(str(one)) for one in (*model["vocab"], *affixes))
    count = len(added) if isinstance(added, list) else 0
    sizes = {
        "tokens are added to its model's": (count, MAX_ADDED_TOKENS),
        "characters are in a token": (longest, MAX_TOKEN_CHARACTERS),
    }
    for parts in (("normalizer", "pre_tokenizer"), ("decoder",)):
        steps = [step for part in parts for step in _steps(description.get(part), name)]
        place = " and ".join(parts)
        growth = math.prod(map(_growth, steps[:MAX_STEPS]))
        sizes[f"steps are in its {place}"] = len(steps), MAX_STEPS
        sizes[f"characters are made of one by its {place}"] = growth, MAX_GROWTH
    for what, (size, most) in sizes.items():
        if size > most:
            raise DataError(f"{name}: {min(size, 10**18):,} {what}; at most {most:,} are allowed.")


def _steps(part: Any, name: object) -> list[dict[str, Any]]:
    steps, waiting = [], [] if part is None else [part]
    while waiting:
        step = waiting.pop()
        if not isinstance(step, dict) or not isinstance(step.get("type"), str):
            raise DataError(f"{name} has a part without a type, {step!r:.60}; give one with it.")
        steps.append(step)
        if step["type"] == "Sequence":
            for parts in ("normalizers", "pretokenizers", "decoders"):
                nested = step.get(parts)
                waiting += nested if isinstance(nested, list) else []
    return steps


def _growth(step: dict[str, Any]) -> int:
    match step["type"]:
        case "Replace":
            made, pattern = len(str(step.get("content", ""))), step.get("pattern")
            needs = len(str(pattern.get("String", ""))) if isinstance(pattern, dict) else 0
            # what matches nothing stands between any two characters
            return max(1, -(-made // needs)) if needs else 1 + made
        case "Prepend":  # also to the text between two added tokens
            return 1 + len(str(step.get("prepend", "")))
        case "Precompiled":
            return _longest_replacement(str(step.get("precompiled_charsmap", "")))
        case "BertNormalizer":  # spaces around a Chinese character
            return 3
        case "ByteLevel":  # a character for each byte of UTF-8
            return MAX_CHARACTER_BYTES
        case "BPEDecoder" | "CTC" | "WordPiece":  # a space at most
            return 2
    return 1


def _longest_replacement(characters_map: str) -> int:
    try:
        content = base64.b64decode(characters_map)
    except ValueError:
        return 1  # refused by the library
    replacements = content[4 + int.from_bytes(content[:4], "little") :].split(b"\0")
    return max(1, *(len(one.decode(errors="replace")) for one in replacements))


REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what a decoder gives for bytes of half a character
MAX_CHARACTER_BYTES = 4  # of UTF-8


class TextStream:
    """Writes text token by token, as soon as its characters are complete.

    A token may be part of a character, and how a token is spelled may depend on the one before, so
    decoding starts a few tokens earlier and text that was written already is left out.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: list[int], write: Callable[[str], object]
    ) -> None:
        self.tokenizer, self.write = tokenizer, write
        self.pending = prompt[-MAX_CHARACTER_BYTES:]
        self.written = tokenizer.decode(self.pending)

    def add(self, token: int) -> None:
        """Write the characters that this token completes."""
        self.pending.append(token)
        text = self.tokenizer.decode(self.pending)
        if not text.endswith(REPLACEMENT) or len(text) - len(self.written) > MAX_CHARACTER_BYTES:
            self._write_rest_of(text)
            self.pending = self.pending[-MAX_CHARACTER_BYTES:]
            self.written = self.tokenizer.decode(self.pending)

    def close(self) -> None:
        """Write what was never completed."""
        self._write_rest_of(self.tokenizer.decode(self.pending))

    def _write_rest_of(self, text: str) -> None:
        self.write(text[len(self.written) :])
        self.written = text
