"""Tokenizers in GGUF metadata (tokenizer.ggml.*): reading and writing.

llama.cpp knows how to cut a text into words by a name alone; names that are not listed here are
refused, as another cut gives other tokens without an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from suffice.errors import ConfigError, DataError
from suffice.text.bpe import BPE, model_of_pieces
from suffice.text.tokenizer import Tokenizer, description_of, special_token
from suffice.text.words import Characters

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # entries of token_type
SPACE = "\u2581"  # stands for a space in vocabularies of sentencepiece
WORDS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}


def _split(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    parts = [{**split, "invert": False}, {**BYTES, "use_regex": False}]
    return {"type": "Sequence", "pretokenizers": parts}


PRE_TOKENIZERS = {
    "gpt-2": BYTES,
    "smollm": {"type": "Sequence", "pretokenizers": [DIGITS, BYTES]},
    **{name: _split(pattern) for name, pattern in WORDS.items()},
}
"""How texts are cut into words, by llama.cpp's names."""
PRE_TOKENIZER_ALIASES = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "stablelm2": "qwen2",
    "gpt2": "gpt-2",
}
WHOLE_WORDS = ("llama-bpe",)  # a word that is a token is not cut
PIECES = {
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": SPACE},
            {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        ],
    },
    "decoder": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
}


def read_vocabulary(metadata: Mapping[str, Any], where: object) -> BPE | Characters:
    """Return the tokenizer of a file's metadata."""
    entries = {n.removeprefix(PREFIX): v for n, v in metadata.items() if n.startswith(PREFIX)}
    kind, tokens = entries.get("model"), entries.get("tokens")
    if kind not in ("gpt2", "llama", "rwkv"):
        raise ConfigError(
            f"{where}: a vocabulary of kind {kind!r:.40} is not read; gpt2, llama and rwkv are."
        )
    if not isinstance(tokens, list) or not all(isinstance(one, str) for one in tokens):
        raise DataError(f"{where} has no list of tokens; download it again.")
    types = _numbers(entries, "token_type", len(tokens), where) or [NORMAL] * len(tokens)
    used = max((n for n, one in enumerate(types, 1) if one != UNUSED), default=0)
    tokens, types = tokens[:used], types[:used]  # others fill a matrix up
    if kind == "rwkv":
        return _read_characters(tokens, where)
    ids: dict[str, int] = {}
    for number, token in enumerate(tokens):  # a token that is there twice is reached by its first
        name = token if token not in ids else f"{token}<{number}>"
        ids[name] = number
    names = list(ids)
    special = [
        special_token(n, name) for n, name in enumerate(names) if types[n] in (CONTROL, USER)
    ]
    parts = (_of_bytes if kind == "gpt2" else _of_pieces)(entries, ids, types, where)
    around = {}
    for part, entry, add, default in (
        ("begin", "bos", "add_bos_token", kind == "llama" or _pre(entries) == "llama-bpe"),
        ("end", "eos", None, True),
    ):
        id_ = entries.get(f"{entry}_token_id")
        wanted = default if add is None else entries.get(add, default)
        if type(id_) is int and id_ < len(names) and wanted:
            around[part] = names[id_]
    description = description_of(added_tokens=special, **parts)
    return BPE(json.dumps(description), **around, name=where)


def _pre(entries: Mapping[str, Any]) -> Any:
    name = entries.get("pre", "default")
    return PRE_TOKENIZER_ALIASES.get(name, name)


def _numbers(entries: Mapping[str, Any], name: str, count: int, where: object) -> list[Any]:
    values = entries.get(name)
    if values is None:
        return []
    if not isinstance(values, list) or len(values) != count:
        raise DataError(f"{where}: {name} are not {count:,}, one a token; download it again.")
    return values


def _of_bytes(
    entries: Mapping[str, Any], ids: dict[str, int], _types: list[int], where: object
) -> dict[str, Any]:
    name = _pre(entries)
    if name not in PRE_TOKENIZERS:
        raise ConfigError(
            f"{where}: texts are cut into words by {name!r:.40}, which is not known here; known "
            f"are {', '.join([*PRE_TOKENIZERS, *PRE_TOKENIZER_ALIASES])}."
        )
    merges = entries.get("merges") or []
    pairs = [one.split(" ") for one in merges if isinstance(one, str)]
    if len(pairs) < len(merges) or any(len(pair) != 2 for pair in pairs):  # noqa: PLR2004
        raise DataError(f"{where} has merges that are not pairs; download it again.")
    if lost := next((part for pair in pairs for part in pair if part not in ids), None):
        raise DataError(f"{where} merges {lost!r:.40}, which is not a token; download it again.")
    kept = [pair for pair in pairs if "".join(pair) in ids]
    model = {"type": "BPE", "vocab": ids, "merges": kept, "ignore_merges": name in WHOLE_WORDS}
    return {"pre_tokenizer": PRE_TOKENIZERS[name], "decoder": BYTES, "model": model}


def _of_pieces(
    entries: Mapping[str, Any], ids: dict[str, int], types: list[int], where: object
) -> dict[str, Any]:
    scores = _numbers(entries, "scores", len(entries["tokens"]), where)
    if not scores:
        raise DataError(f"{where} has no scores of its pieces; download it again.")
    joined = {n: scores[id_] for n, id_ in ids.items() if types[id_] in (NORMAL, USER)}
    unknown = next((name for name, id_ in ids.items() if types[id_] == UNKNOWN), None)
    model = model_of_pieces(ids, joined, unknown)
    if entries.get("add_space_prefix", True):
        return {**PIECES, "model": model}
    decoders = PIECES["decoder"]["decoders"][:-1]
    return {
        "normalizer": PIECES["normalizer"]["normalizers"][1],
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def vocabulary_entries(tokenizer: Tokenizer, size: int) -> dict[str, Any]:
    """Return the metadata of a tokenizer, for a model with `size` tokens."""
    entries = (
        _characters(tokenizer) if isinstance(tokenizer, Characters) else _byte_pairs(tokenizer)
    )
    unused = size - len(entries["tokens"])
    entries["tokens"] += [f"<unused {number}>" for number in range(unused)]
    entries["token_type"] += [UNUSED] * unused
    if "scores" in entries:
        entries["scores"] += [0.0] * unused
    for name, id_ in (("bos", tokenizer.begin), ("eos", tokenizer.end)):
        if id_ is not None:
            entries[f"{name}_token_id"] = id_
    entries |= {"add_bos_token": tokenizer.begin is not None, "add_eos_token": False}
    return {PREFIX + name: value for name, value in entries.items()}


def _refuse(why: str) -> ConfigError:
    return ConfigError(f"llama.cpp has no tokenizer that cuts texts as this one: {why}.")


def _characters(tokenizer: Characters) -> dict[str, Any]:
    # RWKV's kind: the longest token that fits is taken, none ends a text; bytes with escapes
    tokens = [repr(one.encode())[2:-1] for one in tokenizer.characters]
    return {"model": "rwkv", "tokens": tokens, "token_type": [NORMAL] * len(tokens)}


def _read_characters(tokens: list[str], where: object) -> Characters:
    try:
        escaped = (token.encode("ascii").decode("unicode_escape") for token in tokens)
        texts = [one.encode("latin-1").decode() for one in escaped]
    except UnicodeError as error:
        raise ConfigError(f"{where} has tokens that are not whole characters.") from error
    if any(len(text) != 1 for text in texts):
        raise ConfigError(f"{where}: of RWKV's vocabularies those of characters alone are read.")
    return Characters("".join(texts))


def _byte_pairs(tokenizer: Any) -> dict[str, Any]:
    description = json.loads(tokenizer.description)
    model = description["model"]
    tokens = [f"<unused {number}>" for number in range(tokenizer.vocabulary_size)]
    types = [UNUSED] * len(tokens)
    for name, id_ in model["vocab"].items():
        tokens[id_], types[id_] = name, NORMAL
    for row in description.get("added_tokens") or ():
        tokens[row["id"]] = row["content"]
        types[row["id"]] = CONTROL if row.get("special") else USER
    pairs = [tuple(p.split(" ", 1)) if isinstance(p, str) else tuple(p) for p in model["merges"]]
    entries: dict[str, Any] = {"tokens": tokens, "token_type": types}
    if model.get("byte_fallback"):
        return _pieces(entries, pairs, description)
    if description.get("normalizer") is not None:
        raise _refuse("it changes texts before it cuts them")
    if tokenizer.end is None:
        raise _refuse("it has no EOS token, and llama.cpp would take id 11")
    words = description.get("pre_tokenizer")
    name = next((n for n, cut in PRE_TOKENIZERS.items() if _plain(cut) == _plain(words)), None)
    if name is None:
        raise _refuse("it cuts them into words in a way that llama.cpp does not know")
    merges = [" ".join(pair) for pair in pairs]
    return {"model": "gpt2", "pre": name, **entries, "merges": merges}


def _pieces(
    entries: dict[str, Any], pairs: list[tuple[str, str]], description: dict[str, Any]
) -> dict[str, Any]:
    tokens, types = entries["tokens"], entries["token_type"]
    ranks: dict[str, float] = {}
    for rank, pair in enumerate(pairs):
        ranks.setdefault("".join(pair), -float(rank + 1))
    unknown = description["model"].get("unk_token")
    for id_, token in enumerate(tokens):
        if token == unknown:
            types[id_] = UNKNOWN
        elif len(token) == 6 and token.startswith("<0x"):  # noqa: PLR2004
            types[id_] = BYTE
    lowest = -float(len(pairs) + 1)
    scores = [ranks.get(token, lowest) for token in tokens]
    return {
        "model": "llama",
        "tokens": [token.replace(" ", SPACE) for token in tokens],
        "token_type": types,
        "scores": scores,
        "add_space_prefix": "Prepend" in json.dumps(description.get("normalizer")),
    }


def _plain(part: Any) -> Any:
    """Return a part of a description without what changes no token."""
    if isinstance(part, dict):
        nested = part.get("pretokenizers")
        if part.get("type") == "Sequence" and isinstance(nested, list) and len(nested) == 1:
            return _plain(nested[0])
        return {n: _plain(v) for n, v in part.items() if n not in ("trim_offsets", "invert")}
    return [_plain(one) for one in part] if isinstance(part, list) else part
