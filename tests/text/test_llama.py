from __future__ import annotations

import json
import random
import struct
import sys
from pathlib import Path

import pytest

from suffice.errors import DataError
from suffice.text import BPE, llama, load_tokenizer

PIECES = [
    *"erthwoais \u00e9",
    *("er", "th", "he", "re", "the", "at", "ther", "ere", "wh", "is", "his"),
    *(" t", " the", " th", "\u00e9t"),
]
Entries = list[tuple[bytes, float]]


def entries(pieces: list[str] = PIECES) -> Entries:
    head: Entries = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0)]
    head += [(f"<0x{byte:02X}>".encode(), 0.0) for byte in range(256)]
    # Longer pieces are not always better: the order of scores is not that of ids.
    return head + [(piece.encode(), -float(i * 7 % 25)) for i, piece in enumerate(pieces)]


def packed(rows: Entries) -> bytes:
    longest = struct.pack("<i", max(len(piece) for piece, _ in rows))
    return longest + b"".join(struct.pack("<fi", score, len(p)) + p for p, score in rows)


def unpacked(content: bytes) -> Entries:
    rows, at = [], 4
    while at < len(content):
        score, length = struct.unpack_from("<fi", content, at)
        rows.append((content[at + 8 : at + 8 + length], score))
        at += 8 + length
    return rows


def sentencepiece(rows: Entries, text: str) -> list[int]:
    """Encode as the C program does: the best pair of all, the leftmost of equals, again."""
    ids = {piece: number for number, (piece, _) in enumerate(rows)}
    tokens = [ids[b" "]] if text else []
    for character in text:
        piece = character.encode()
        tokens += [ids[piece]] if piece in ids else [byte + 3 for byte in piece]
    while True:
        pairs = [rows[a][0] + rows[b][0] for a, b in zip(tokens, tokens[1:], strict=False)]
        known = [(rows[ids[pair]][1], -at) for at, pair in enumerate(pairs) if pair in ids]
        if not known:
            return tokens
        at = -max(known)[1]
        tokens[at : at + 2] = [ids[pairs[at]]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    at = tmp_path / "tok.bin"
    at.write_bytes(packed(entries()))
    return at


def test_encodings_are_those_of_sentencepiece(file: Path):
    tokenizer = llama(file)
    draw = random.Random(0)
    for _ in range(500):
        text = "".join(draw.choices("erthwoais \u00e9t\u4e2d\n", k=draw.randrange(25)))
        assert tokenizer.encode(text) == sentencepiece(entries(), text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_documents_stand_between_begin_and_end(file: Path):
    tokenizer = llama(file)
    assert (tokenizer.begin, tokenizer.end) == (1, 2)
    assert tokenizer.vocabulary_size == len(entries())
    assert not {1, 2} & set(tokenizer.encode("<s> </s>"))
    assert tokenizer.decode(tokenizer.encode("<s> <0x41>")) == "<s> <0x41>"


def test_it_is_saved_and_loaded(file: Path, tmp_path: Path):
    tokenizer = llama(file)
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert (loaded.begin, loaded.end) == (1, 2)


@pytest.mark.parametrize("cut", [0, 3, 4, 9, 12, 200, -1, -12])
def test_a_file_cut_short_is_refused(file: Path, cut: int):
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"tok\.bin (is not a tok|does not begin)"):
        llama(file)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (entries()[:200], r"does not begin with <unk>, <s>, </s> and the 256 bytes"),
        (entries()[::-1], r"does not begin with <unk>, <s>, </s> and the 256 bytes"),
        ([*entries(), (b"th", 0.0)], "holds a piece twice"),
        ([*entries(), (b"\xff", 0.0)], r"holds a piece that is not UTF-8 \(at byte"),
        ([*entries(), (b"q", float("nan"))], "is not a tokenizer file of llama2.c, or is cut"),
        ([*entries(), (b"q" * 1025, 0.0)], "is not a tokenizer file of llama2.c, or is cut"),
        ([*entries(), (b"", 0.0)], "is not a tokenizer file of llama2.c, or is cut"),
    ],
)
def test_a_damaged_file_is_refused(file: Path, rows: Entries, sentence: str):
    file.write_bytes(packed(rows))
    with pytest.raises(DataError, match=sentence):
        llama(file)


def test_a_file_too_large_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules[llama.__module__], "MAX_FILE_BYTES", 1000)
    with pytest.raises(DataError, match="llama2.c"):
        llama(file)


def renamed(tokenizer: BPE, names: dict[str, str]) -> dict:
    text = json.dumps(json.loads(tokenizer.description))
    for name, other in names.items():
        text = text.replace(json.dumps(name), json.dumps(other))
    return json.loads(text)


@pytest.mark.parametrize(
    "names", [{}, {"<s>": "<|begin_of_text|>", "</s>": "<|end_of_text|>"}], ids=["2", "3"]
)
def test_a_tokenizer_json_of_any_llama_is_read(file: Path, tmp_path: Path, names: dict):
    at = tmp_path / "tokenizer.json"
    at.write_text(json.dumps(renamed(llama(file), names)))
    tokenizer = llama(at)
    assert (tokenizer.begin, tokenizer.end) == (1, 2)
    assert tokenizer.encode("the wheat") == llama(file).encode("the wheat")


def test_the_begin_token_is_not_put_before_a_text(file: Path, tmp_path: Path):
    """A tokenizer.json of Llama asks for it; whoever joins documents decides."""
    text = {"Sequence": {"id": "A", "type_id": 0}}
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [begin, text], "pair": [text, text]}
    template["special_tokens"] = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
    at = tmp_path / "tokenizer.json"
    at.write_text(json.dumps({**renamed(llama(file), {}), "post_processor": template}))
    assert llama(at).encode("the wheat") == llama(file).encode("the wheat")


@pytest.mark.parametrize(
    "added", [None, 5, [], ["<s>", "</s>"], [{"content": ["<s>"]}], [{"content": "<s>"}]]
)
def test_a_tokenizer_json_of_another_model_is_refused(file: Path, tmp_path: Path, added: object):
    at = tmp_path / "tokenizer.json"
    at.write_text(json.dumps({**renamed(llama(file), {}), "added_tokens": added}))
    with pytest.raises(DataError, match="adds neither <s> and </s> nor <|begin_of_text|> and"):
        llama(at)


def test_a_sentencepiece_model_is_refused_with_what_to_do(tmp_path: Path):
    with pytest.raises(DataError, match=r"tokenizer\.model"):
        llama(tmp_path / "tokenizer.model")


def test_the_tokens_of_stories260k(options: Path):
    at = options / "models" / "stories260K" / "tok512.bin"
    tokenizer = llama(at)
    assert tokenizer.vocabulary_size == 512
    assert tokenizer.encode("Once upon a time") == [403, 407, 261, 378]
    text = "Lily and Tom went to the park, to play with the big red ball. \u00e9 <s>\n" * 3
    assert tokenizer.encode(text) == sentencepiece(unpacked(at.read_bytes()), text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
