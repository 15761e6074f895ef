"""Damaged folders of packed models: refused with a sentence, or read within their memory."""

from __future__ import annotations

import json
import random
import shutil
import struct

import pytest
import torch

from suffice import preset
from suffice.errors import CheckpointError
from suffice.generate import generate
from suffice.models import LMConfig, folder
from suffice.quantise import quantise
from suffice.text import Characters

WEIGHTS, CONFIG = "model.safetensors", "config.json"
ODD = (0, -1, 1, 2, 7, 16, 1 << 31, 1 << 63, 1 << 70, 1.5, 1e308, True, None, "", "F32", [], {})
DTYPES = ("F32", "F16", "U8", "I8", "BF16", "I64", "F8_E4M3", "BOOL", "X")


@pytest.fixture(scope="module", params=[16, 8, 4])
def sound(request, tmp_path_factory):
    """A folder of a small packed model."""
    sizes = {"vocabulary_size": 8, "length": 16, "d_model": 16, "depth": 2, "mlp_width": 24}
    lm = LMConfig(**sizes, tied=False).build(preset("gqa", 16, 2, causal=True)).eval()
    quantise(lm, bits=request.param)
    place = tmp_path_factory.mktemp(f"{request.param}bits")
    folder.save(place, lm, Characters("abcdefgh"))
    return place


def split(path):
    """Return the header of a file of weights, and what follows it."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def join(path, header, rest):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + rest)


def cut_short(pick, place):
    """End a file too early."""
    path = place / pick.choice((WEIGHTS, CONFIG))
    content = path.read_bytes()
    path.write_bytes(content[: pick.choice((0, 7, 8, 9, pick.randrange(len(content))))])


def bytes_changed(pick, place):
    """Change some bytes of a config, or of a header and its length."""
    path = place / pick.choice((WEIGHTS, CONFIG))
    content = bytearray(path.read_bytes())
    header = struct.unpack("<Q", content[:8])[0] + 8 if path.name == WEIGHTS else len(content)
    for _ in range(pick.randint(1, 3)):
        at = pick.choice((pick.randrange(min(8, header)), pick.randrange(header)))
        content[at] = pick.choice((pick.randrange(256), ord("0") + pick.randrange(10)))
    path.write_bytes(content)


def header_changed(pick, place):
    """Say something else of a tensor: dtype, shape, place; leave it out, or name it otherwise."""
    header, rest = split(place / WEIGHTS)
    name, other = pick.sample([key for key in header if key != "__metadata__"], 2)
    entry = header[name]
    how = pick.randrange(7)
    if how == 0:
        entry["dtype"] = pick.choice(DTYPES)
    elif how == 1:
        shape = entry["shape"]
        shape[pick.randrange(len(shape))] = pick.choice(ODD)
    elif how == 2:
        entry["data_offsets"][pick.randrange(2)] = pick.choice((*ODD, len(rest), len(rest) + 1))
    elif how == 3:
        entry["data_offsets"] = header[other]["data_offsets"]
    elif how == 4:
        header[pick.choice((other, "more"))] = header.pop(name)
    elif how == 5:
        header["__metadata__"] = {"tied": json.dumps({name: pick.choice((name, other, 3))})}
    else:
        header[name] = pick.choice(ODD)
    join(place / WEIGHTS, header, rest)


def config_changed(pick, place):
    """Say something else of a scheme or of a size."""
    facts = json.loads((place / CONFIG).read_text())
    part = facts["packed"] if pick.random() < 0.5 else facts
    name = pick.choice(list(part))
    if isinstance(part[name], dict) and pick.random() < 0.8:
        part = part[name]
        name = pick.choice([*part, "bits", "group"])
    elif isinstance(part[name], list):
        part = part[name][0]
        name = pick.choice(list(part))
    part[name] = pick.choice(ODD)
    (place / CONFIG).write_text(json.dumps(facts))


def rest_changed(pick, place):
    """Change numbers, to no sense."""
    header, rest = split(place / WEIGHTS)
    rest = bytearray(rest)
    for _ in range(pick.choice((1, 50))):
        rest[pick.randrange(len(rest))] = pick.randrange(256)
    join(place / WEIGHTS, header, bytes(rest))


@pytest.mark.parametrize(
    ("damage", "cases"),
    [
        (cut_short, 20),
        (bytes_changed, 60),
        (header_changed, 60),
        (config_changed, 60),
        (rest_changed, 4),
    ],
)
def test_damage_is_refused_or_read_within_memory(sound, tmp_path, damage, cases):
    for seed in range(cases):
        pick = random.Random(seed)
        place = tmp_path / str(seed)
        shutil.copytree(sound, place)
        damage(pick, place)
        try:
            lm, _, _ = folder.load(place)
        except CheckpointError:
            continue
        assert damage is not cut_short
        assert generate(lm, [[1, 2]], max_new_tokens=2).new.shape == (1, 2)
        with torch.no_grad():
            assert lm(torch.tensor([[1, 2]])).shape[:2] == (1, 2)
