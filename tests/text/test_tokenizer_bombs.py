"""Tokenizers that would make terabytes of a letter are refused, published ones are not."""

from __future__ import annotations

import base64
import json

import pytest
from tokenizers import Tokenizer

from suffice.errors import DataError
from suffice.text import BPE
from suffice.text.tokenizer import _growth

DESCRIPTION = json.loads(BPE.train(["low lower lowest"] * 3, 264).description)


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def in_turn(kind, *steps):
    return {"type": "Sequence", kind: [*steps]}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DECODER = {"type": "BPEDecoder", "suffix": ""}
CTC = {"type": "CTC", "pad_token": "|", "word_delimiter_token": "", "cleanup": True}


@pytest.mark.parametrize(
    ("part", "step", "text"),
    [
        ("normalizer", replace("ab", "12345"), "ab" * 5),
        ("normalizer", replace("", "12"), "a" * 5),
        ("normalizer", replace("(?<=a)", "12", "Regex"), "a" * 5),
        ("normalizer", {"type": "Prepend", "prepend": "12345"}, "a"),
        ("normalizer", {"type": "ByteLevel"}, "\U0010ffff" * 5),
        ("decoder", replace("a", "123"), "a" * 5),
        ("decoder", replace("b*", "12", "Regex"), "a" * 5),
        ("decoder", DECODER, "a" * 5),
        ("decoder", CTC, "ab" * 5),
    ],
)
def test_a_step_makes_no_longer_text_than_is_counted(part, step, text):
    made = Tokenizer.from_str(json.dumps(DESCRIPTION | {part: step}))
    decoded = part == "decoder"
    output = made.decoder.decode([text, "a"]) if decoded else made.normalizer.normalize_str(text)
    assert len(text) + decoded < len(output) <= (len(text) + 1 + 2 * decoded) * _growth(step)


@pytest.mark.parametrize(
    ("change", "size"),
    [
        (
            {"normalizer": in_turn("normalizers", *[replace("a", "a" * 1000)] * 4)},
            f"{4 * 10**12:,}",
        ),
        ({"decoder": in_turn("decoders", *[replace("a", "a" * 1000)] * 4)}, f"{10**12:,}"),
        ({"decoder": replace("", "a" * 64)}, "65"),
        ({"decoder": in_turn("decoders", *[DECODER] * 7)}, "128"),
        ({"decoder": in_turn("decoders", *[{"type": "Fuse"}] * 64)}, "65 steps"),
        (
            {"normalizer": in_turn("normalizers", in_turn("normalizers", BYTES, BYTES), BYTES)},
            "256",
        ),
        ({"pre_tokenizer": in_turn("pretokenizers", *[BYTES] * 4)}, "256"),
        ({"normalizer": {"prepend": "a"}}, "has a part without a type"),  # the library runs it
        ({"added_tokens": [{}] * ((1 << 17) + 1)}, "131,073 tokens are added"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0, "b" * 4097: 1}, "merges": []}},
            "4,097 characters are in a token",
        ),
    ],
    ids=range(10),
)
def test_what_would_make_a_letter_terabytes_is_refused(change, size):
    with pytest.raises(DataError, match=f" {size}"):
        BPE(json.dumps(DESCRIPTION | change))


def test_the_steps_of_published_tokenizers_are_read():
    llama = in_turn("normalizers", {"type": "Prepend", "prepend": "_"}, replace(" ", "_"))
    clip = in_turn("normalizers", {"type": "NFC"}, replace(r"\s+", " ", "Regex"))
    for change in (
        {"normalizer": llama, "pre_tokenizer": None},
        {"normalizer": clip, "pre_tokenizer": in_turn("pretokenizers", BYTES)},
    ):
        assert BPE(json.dumps(DESCRIPTION | change)).encode("low  lower")
    table = base64.b64encode((3).to_bytes(4, "little") + b"xyz" + "é\0abcdefg\0".encode()).decode()
    assert _growth({"type": "Precompiled", "precompiled_charsmap": table}) == 7
