from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save as serialise
from safetensors.torch import save_file
from torch import nn

from suffice.errors import CheckpointError
from suffice.models import checkpoint
from suffice.train import load, load_model_into, save, save_model
from tests.train.cases import Tiny, weights


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.safetensors"


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def test_equal_content_gives_equal_files(path):
    """Of names that are not ASCII, too; and any reader of safetensors reads them."""
    tensors = {"b": torch.arange(3), "ä": torch.ones(2, 2), "c": torch.ones(1)}
    tensors["tied"] = tensors["b"]
    written = set()
    for _ in range(12):
        save(path, tensors, {"z": 1, "a": "ü"})
        written.add(path.read_bytes())
    assert len(written) == 1
    with safe_open(path, "pt") as file:
        assert file.metadata().keys() == {"format", "suffice", "tied"}
        assert torch.equal(file.get_tensor("ä"), tensors["ä"])
    (start,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert start % 8 == 0


def test_tensors_and_metadata_come_back_exactly(path):
    tensors = {
        "f": torch.tensor([1.1, float("nan"), float("inf")]),
        "strided": torch.arange(6.0, dtype=torch.float64).view(2, 3).T,
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "bytes": torch.arange(4, dtype=torch.uint8),
        "bool": torch.tensor([True, False]),
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
    }
    metadata = {"list": [1, 0.1, None], "text": "é", "nested": {"a": True}}
    save(path, tensors, metadata)
    found, facts = load(path)
    assert facts == metadata
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].nan_to_num(), tensor.nan_to_num())
    load(path, tensors)
    assert os.listdir(path.parent) == [path.name]


def test_the_dtype_of_a_file_that_cannot_be_read_is_reported(path):
    path.write_bytes(b"\x02" + b"\0" * 7 + b"{]")
    with pytest.raises(CheckpointError, match="is not a readable safetensors file"):
        checkpoint.dtype_of(path)
    save(path, {"a": torch.ones(1).half(), "n": torch.ones(1, dtype=torch.int64)}, {})
    assert checkpoint.dtype_of(path) == torch.float16


def test_a_plain_safetensors_file_has_no_metadata(path):
    path.write_bytes(serialise({"a": torch.ones(2)}))
    found, facts = load(path, {"a": torch.zeros(2)})
    assert facts == {}
    assert found["a"].tolist() == [1.0, 1.0]


def test_what_was_loaded_is_not_the_file(path):
    save(path, {"a": torch.ones(4)}, {})
    found, _ = load(path)
    with path.open("r+b") as file:
        file.seek(-16, os.SEEK_END)
        file.write(bytes(16))
    assert found["a"].tolist() == [1.0] * 4


def test_equal_memory_is_stored_once_and_overlapping_memory_twice(path):
    whole = torch.arange(1000.0)
    tensors = {"a": whole, "b": whole, "left": whole[:500], "again": whole.view(1000)}
    save(path, tensors, {})
    assert 4 * 1500 < path.stat().st_size < 4 * 1700
    found, _ = load(path, tensors)
    assert same(found, tensors)
    assert found["a"].data_ptr() == found["b"].data_ptr() == found["again"].data_ptr()


def test_empty_tensors_are_not_taken_for_each_other(path):
    tensors = {"a": torch.zeros(0, 2), "b": torch.zeros(0, 2)}
    save(path, tensors, {})
    assert "__metadata__" in (header := read_header(path))
    assert header.keys() == {"__metadata__", "a", "b"}


def read_header(path):
    raw = path.read_bytes()
    return json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])


# what cannot be stored


@pytest.mark.parametrize(
    ("value", "what"), [(torch.ones(1, dtype=torch.complex64), "complex64"), ([1.0], "list")]
)
def test_other_values_are_refused_by_name(path, value, what):
    with pytest.raises(CheckpointError, match=rf"cannot write .*: 'odd' is .*{what}; give tensors"):
        save(path, {"odd": value}, {})
    assert not path.exists()


@pytest.mark.parametrize("value", [float("nan"), {1, 2}])
def test_metadata_that_is_not_json_is_refused(path, value):
    with pytest.raises(CheckpointError, match="cannot write .*: metadata is not JSON"):
        save(path, {}, {"loss": value})


def test_metadata_larger_than_a_reader_accepts_is_refused(path):
    with pytest.raises(CheckpointError, match="4194304 bytes"):
        save(path, {}, {"text": "x" * checkpoint.HEADER_LIMIT})


# the disk


@pytest.mark.parametrize(
    ("call", "error", "raised"),
    [
        ("fsync", OSError(28, "No space left on device"), CheckpointError),
        ("replace", OSError(28, "No space left on device"), CheckpointError),
        ("fsync", KeyboardInterrupt("now"), KeyboardInterrupt),
    ],
)
def test_a_failure_at_any_call_leaves_the_last_good_file(path, monkeypatch, call, error, raised):
    save(path, {"a": torch.ones(10)}, {"n": 1})
    before = path.read_bytes()

    def fail(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(raised, match="No space left on device|now"):
            save(path, {"a": torch.ones(11)}, {"n": 2})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_the_file_is_on_the_disk_before_it_takes_its_name_and_the_folder_after(path, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace

    def synced(number):
        events.append(Path(os.readlink(f"/proc/self/fd/{number}")).name)
        fsync(number)

    def replaced(source, target):
        events.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    save(path, {"a": torch.ones(1)}, {})
    temporary, *later = events
    assert temporary.startswith(f".{path.name}.")
    assert later == ["replace", path.parent.name]


@pytest.mark.parametrize("place", ["absent/a", "folder"])
def test_a_place_that_cannot_be_written_is_refused(tmp_path, place):
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match="cannot write .*"):
        save(tmp_path / place, {"a": torch.ones(1)}, {})
    assert os.listdir(tmp_path) == ["folder"]


# hostile files


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def good():
    return serialise({"a": torch.ones(4), "b": torch.zeros(2, 2)})


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


HOSTILE = {
    "empty": b"",
    "short": b"abc",
    "pickle": pickle.dumps(Bomb()),
    "long pickle": pickle.dumps([Bomb(), "x" * 10_000]),
    "garbage": bytes(range(256)) * 8,
    "zip": b"PK\x03\x04" + bytes(4096),
    "truncated data": good()[:-3],
    "truncated header": good()[:40],
    "appended": good() + b"more",
    "header of 2**60": struct.pack("<Q", 2**60) + b"{}",
    "header of 2**64-1": struct.pack("<Q", 2**64 - 1) + b"{}",
    "header longer than the file": struct.pack("<Q", 1000) + b"{}",
    "header over the limit": with_header(b" " * (4 * 2**20 + 1)),
    "not json": with_header(b"{" * 64),
    "deep": with_header(b'{"a":' + b"[" * 100_000),
    "overlap": with_header(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        bytes(4),
    ),
    "overflowing shape": with_header(
        b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'
    ),
    "negative": with_header(b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', bytes(4)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_sentence_and_runs_nothing(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hostile"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(CheckpointError, match="hostile is not a .*safetensors file.*"):
        load(path)
    assert os.listdir(tmp_path) == ["hostile"]


@pytest.mark.parametrize("name", ["header over the limit", "header of 2**60", "truncated header"])
def test_a_header_is_measured_before_it_is_parsed(path, monkeypatch, name):
    path.write_bytes(HOSTILE[name])
    monkeypatch.setattr(checkpoint, "safe_open", None)
    size = struct.unpack("<Q", HOSTILE[name][:8])[0]
    with pytest.raises(CheckpointError, match=rf"or is cut short \(\d+ bytes, header of {size}\)"):
        load(path)


def test_a_header_at_the_limit_is_read_no_further_than_needed(path):
    entry = '"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = "{" + ",".join(entry % i for i in range(60_000)) + "}"
    path.write_bytes(with_header(header.encode()))
    with pytest.raises(CheckpointError, match="'weight'") as caught:
        load(path, {"weight": torch.ones(1)})
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"suffice": "{"}, "metadata that is not JSON"),
        ({"suffice": "[" * 100_000}, "metadata that is not JSON"),
        ({"suffice": "[]"}, "metadata that is not a JSON object"),
        ({"tied": "3"}, "metadata that is not a JSON object"),
        ({"tied": '{"c": 3}'}, "ties a tensor to something not a name"),
        ({"tied": '{"c": "absent"}'}, "ties tensors it does not hold"),
        ({"tied": '{"a": "a"}'}, "ties tensors it does not hold"),
    ],
)
def test_hostile_metadata_is_refused(path, facts, what):
    path.write_bytes(serialise({"a": torch.ones(1)}, facts))
    with pytest.raises(CheckpointError, match=what):
        load(path)


def test_a_dtype_that_is_not_supported_is_refused(path):
    path.write_bytes(serialise({"a": torch.ones(2, dtype=torch.complex64)}))
    with pytest.raises(CheckpointError, match="'a'"):
        load(path)


@pytest.mark.parametrize(("place", "what"), [("absent", "does not exist"), ("", "is not a file")])
def test_a_file_that_is_not_there_is_refused(tmp_path, place, what):
    with pytest.raises(CheckpointError, match=rf"{what}; give a safetensors file"):
        load(tmp_path / place)


def test_a_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="pipe is not a file"):
        load(tmp_path / "pipe")


def test_a_file_that_may_not_be_read_is_refused(path, monkeypatch):
    save(path, {"a": torch.ones(1)}, {})

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"cannot read .* \(Permission denied\)"):
        load(path)


# models


def test_a_model_comes_back_with_its_config(path):
    save_model(path, model := Tiny(seed=1), {"width": 12})
    other = Tiny(seed=2)
    assert load_model_into(path, other) == {"width": 12}
    assert same(weights(other), weights(model))


def test_a_wrapped_model_is_stored_and_filled_without_a_prefix(path):
    model = Tiny(seed=1)
    wrapped = torch.compile(model, backend="eager")
    assert next(iter(wrapped.state_dict())).startswith("_orig_mod.")
    save_model(path, wrapped, {})
    assert read_header(path).keys() == {"__metadata__", *model.state_dict()}
    other = torch.compile(Tiny(seed=2), backend="eager")
    load_model_into(path, other)
    assert same(weights(other._orig_mod), weights(model))


def change(path, **changes):
    """Write Tiny's weights with some replaced, None removing one."""
    tensors = weights(Tiny(seed=1)) | {n.replace("__", "."): t for n, t in changes.items()}
    kept = {n: t for n, t in tensors.items() if t is not None}
    save(path, kept, {"content": "model", "config": {}})


MISFITS = {
    "missing": ({"head__bias": None}, r"does not fit: 'head\.bias' is missing\.$"),
    "misspelt": (
        {"head__bias": None, "head__bais": torch.ones(6)},
        r"'head\.bias' is missing \(nearest: 'head\.bais'\)\. 'head\.bais' is not expected\.$",
    ),
    "extra": ({"more": torch.ones(1)}, r"'more' is not expected\.$"),
    "shape": ({"head__bias": torch.ones(7)}, r"'head\.bias' has shape \[7\], expected \[6\]\.$"),
    "dtype": (
        {"head__bias": torch.ones(6).double()},
        r"'head\.bias' is F64, expected torch\.float32\.$",
    ),
    "all": (
        {"head__bias": None, "more": torch.ones(1), "hidden__bias": torch.ones(1, 12)},
        r"missing\. 'more' is not expected\. 'hidden\.bias' has shape \[1, 12\], expected",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_every_misfit_is_listed_and_nothing_is_changed(path, name):
    changes, told = MISFITS[name]
    change(path, **changes)
    before = weights(model := Tiny(seed=2))
    with pytest.raises(CheckpointError, match=told):
        load_model_into(path, model)
    assert same(weights(model), before)


def test_a_file_of_something_else_is_refused_before_its_tensors_are_looked_at(path):
    save(path, {"a": torch.ones(1)}, {"content": "training"})
    with pytest.raises(CheckpointError, match="is not a model written by `save_model`"):
        load_model_into(path, Tiny())


def test_a_square_matrix_and_its_transpose_are_two_tensors(path):
    weight = torch.arange(9.0).view(3, 3)
    checkpoint.save(path, {"a": weight, "b": weight.T, "c": weight}, {})
    tensors, _ = checkpoint.load(path)
    assert torch.equal(tensors["a"], weight)
    assert torch.equal(tensors["b"], weight.T)
    assert torch.equal(tensors["c"], weight)


class Tied(nn.Module):
    def __init__(self, tie=True):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        if tie:
            self.head.weight = self.embed.weight


def test_tied_weights_come_back_tied_or_copied(path):
    save_model(path, model := Tied(), {})
    assert read_header(path).keys() == {"__metadata__", "embed.weight"}
    for other in (Tied(), Tied(tie=False)):
        load_model_into(path, other)
        assert torch.equal(other.head.weight, model.embed.weight)
        assert torch.equal(other.embed.weight, model.embed.weight)


def test_untied_weights_fill_a_tied_model_only_when_equal(path):
    save_model(path, loose := Tied(tie=False), {})
    before = weights(tied := Tied())
    told = "holds different values for 'head.weight' and 'embed.weight', which this model ties"
    with pytest.raises(CheckpointError, match=told):
        load_model_into(path, tied)
    assert same(weights(tied), before)
    loose.head.weight.data.copy_(loose.embed.weight)
    save_model(path, loose, {})
    load_model_into(path, tied)
    assert torch.equal(tied.head.weight, loose.embed.weight)


# misfits


def misfits_of(path, tensors, expected):
    save_file(tensors, path)
    with safe_open(path, framework="pt") as file:
        return checkpoint.misfits(file, {name: name for name in tensors}, expected)


def test_what_fits_has_no_misfits(tmp_path):
    tensors = {"a": torch.ones(2), "b": torch.ones((), dtype=torch.int64)}
    assert misfits_of(tmp_path / "a", tensors, tensors) == []


def test_a_long_list_is_cut_and_counted(tmp_path):
    tensors = {f"t{i:02}": torch.ones(2) for i in range(30)}
    messages = misfits_of(tmp_path / "a", tensors, {name: torch.ones(3) for name in tensors})
    assert len(messages) == 17
    assert messages[0] == "'t00' has shape [2], expected [3]."
    assert messages[-1] == "And 14 more."


def test_names_are_quoted_and_shortened(tmp_path):
    messages = misfits_of(tmp_path / "a", {"\x1b[31m" + "x" * 500: torch.ones(1)}, {})
    assert messages == [repr("\x1b[31m" + "x" * 72 + "...") + " is not expected."]
