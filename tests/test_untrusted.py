"""Models of others: nothing is executed, and no name leads out of their folder."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

import suffice
from suffice.cli import options
from suffice.convert.sources import open_source
from suffice.errors import CheckpointError, SufficeError
from suffice.export import export
from suffice.models import folder
from suffice.runtime import Session, open_graph, read
from suffice.text import load_tokenizer
from tools.kills.cases import _inputs


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def _archive(path, canary):
    """Write what torch.save writes: a zip with a pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Canary(canary)))
        archive.writestr("archive/version", "3")


READERS = {
    "load": suffice.load,
    "open_source": open_source,
    "read": folder.read,
    "export": lambda path: export(path, "hf", path.parent / "out"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "model.safetensors", "m.pt2", "alone.pt", "alone.bin"]
)
def test_archives_of_torch_are_refused_and_never_unpickled(reader, name, tmp_path):
    canary, place = tmp_path / "canary", tmp_path / "m"
    place.mkdir()
    (place / "config.json").write_text('{"model_type": "gpt2", "vocab_size": 9}')
    _archive(place / name, canary)
    with pytest.raises(SufficeError):
        READERS[reader](place / name if name.startswith("alone") else place)
    assert not canary.exists()


OPENED: list[str] | None = None  # names, while a test listens


def _listen(event, arguments):
    if event == "open" and OPENED is not None and isinstance(arguments[0], str | os.PathLike):
        OPENED.append(os.fspath(arguments[0]))


sys.addaudithook(_listen)


def ours(place):
    """A model of this library, the folder of a second tokenizer, and a template."""
    _inputs(place)
    (place / "m" / "source").mkdir()
    (place / "m" / "chat_template.jinja").write_text("{{ messages[0].content }}")


def _theirs(place):
    """A model of transformers with everything that is read beside it."""
    _inputs(place)
    export(place / "m", "hf", place / "e")
    shutil.rmtree(place / "m")
    (place / "e").rename(place / "m")
    config = place / "m" / "config.json"
    facts = json.loads(config.read_text())
    facts.pop("auto_map", None)
    config.write_text(json.dumps(facts))
    (place / "m" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (place / "m" / "generation_config.json").write_text('{"temperature": 0.5}')


VERBS = {
    **{name: (ours, reader) for name, reader in READERS.items()},
    "tokenizer": (ours, load_tokenizer),
    "transformers": (_theirs, open_source),
    "run": (_theirs, read),
}


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
@pytest.mark.parametrize("verb", VERBS)
def test_links_lead_nowhere_else(verb, tmp_path):
    assert_links_are_refused(*VERBS[verb], tmp_path)


def assert_links_are_refused(make, reader, tmp_path):
    """Whatever is opened in a checkpoint, and names that nobody reads, may not be a link out."""
    global OPENED
    make(tmp_path)
    place, secret = tmp_path / "m", tmp_path / "secret"
    OPENED = []
    try:
        reader(place)
    finally:
        opened, OPENED = OPENED, None
    names = {os.path.relpath(path, place) for path in opened if path.startswith(f"{place}/")}
    names |= {path.name for path in place.iterdir()} | {"notes", "vocab.txt", "merges.txt"}
    names |= {"chat_template.jinja", "tokenizer.model", "source/tokenizer.json"}
    assert len(names) > 9
    for name in sorted(names):
        path = place / name
        if not path.parent.is_dir():
            continue
        before = path.exists()
        if before:
            path.rename(secret)
        for target in (secret, Path(os.path.relpath(secret, path.parent)), tmp_path):
            path.symlink_to(target)
            with pytest.raises(CheckpointError, match="link"):
                (folder.read if name.startswith("source/") else reader)(place)
            path.unlink()
        if before:
            secret.rename(path)
        else:
            secret.unlink(missing_ok=True)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_folder_that_is_called_as_the_hub_s_is_no_way_out(tmp_path):
    """Beside a snapshot, links lead to the blobs alone."""
    _inputs(tmp_path)
    (tmp_path / "snapshots").mkdir()
    place = (tmp_path / "m").rename(tmp_path / "snapshots" / "0")
    (tmp_path / "secret").write_text("{}")
    (place / "chat_template.jinja").symlink_to("../../secret")
    with pytest.raises(CheckpointError, match="link"):
        folder.load(place)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_within_a_folder_and_the_hub_s_cache_are_read(tmp_path):
    _inputs(tmp_path)
    hub = tmp_path / "models--a--b"
    (hub / "snapshots").mkdir(parents=True)
    (hub / "blobs").mkdir()
    snapshot = (tmp_path / "m").rename(hub / "snapshots" / "0")
    (snapshot / "model.safetensors").rename(hub / "blobs" / "0")
    (snapshot / "model.safetensors").symlink_to("../../blobs/0")
    (snapshot / "source").mkdir()
    (snapshot / "source" / "notes").symlink_to("../../../blobs/0")
    (snapshot / "config.json").rename(snapshot / "own.json")
    (snapshot / "config.json").symlink_to("own.json")
    assert folder.load(snapshot)[0].config.d_model == 16


def test_a_link_to_nothing_is_no_absent_tokenizer(tmp_path):
    _inputs(tmp_path)
    place = tmp_path / "hf"
    export(tmp_path / "m", "hf", place)
    (place / "tokenizer.json").unlink()
    assert open_source(place).tokenizer is None
    (place / "tokenizer.json").symlink_to("absent.json")  # as a hub's cache without its blob
    with pytest.raises(SufficeError, match="tokenizer.json"):
        open_source(place)


@pytest.mark.parametrize("location", ["../secret", "link", "/etc/hostname"])
def test_numbers_of_a_graph_outside_its_folder_are_refused(location, tmp_path):
    """External data of ONNX: the runtime checks the place, also behind a link."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    (tmp_path / "e").mkdir()
    (tmp_path / "secret").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (tmp_path / "e" / "link").symlink_to("../secret")
    weights = onnx.TensorProto(name="w", data_type=1, dims=[4])
    weights.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "16"}.items():
        entry = weights.external_data.add()
        entry.key, entry.value = key, value
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [4]) for name in "xy")
    node = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [x], [y], [weights])
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    (tmp_path / "e" / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(CheckpointError, match="not a graph"):
        open_graph(tmp_path / "e" / "m.onnx")


@pytest.mark.parametrize(
    "name", ["../m/config.json", "/etc/hostname", "a/../../b", "config.json\0"]
)
def test_a_manifest_names_files_of_its_folder_alone(name, tmp_path):
    _inputs(tmp_path)
    export(tmp_path / "m", "hf", tmp_path / "e")
    path = tmp_path / "e" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": "0"}
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="not a file of the folder"):
        Session(tmp_path / "e", read(tmp_path / "e"))


PANIC = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}


def test_a_tokenizer_that_panics_is_told(tmp_path):
    """A panic of the library in Rust is no Exception."""
    _inputs(tmp_path)
    export(tmp_path / "m", "hf", tmp_path / "e")
    path = tmp_path / "e" / "tokenizer.json"
    description = json.loads(path.read_text())
    description["normalizer"] = PANIC
    path.write_text(json.dumps(description))
    manifest = json.loads((tmp_path / "e" / "manifest.json").read_text())
    manifest["files"]["tokenizer.json"]["sha256"] = _sha256(path)
    (tmp_path / "e" / "manifest.json").write_text(json.dumps(manifest))
    done = _suffice("run", "e", "--prompt", "abc", place=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


def _sha256(path):
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def _suffice(*words, place, **environment):
    return subprocess.run(
        [sys.executable, "-m", "suffice", *words],
        cwd=place,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that nobody can write")
@pytest.mark.slow
def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path):
    _inputs(tmp_path)
    words = ("compare", "--data", "rows.csv", "--mechanisms", "standard,linear", "--seeds", "1")
    words += ("--epochs", "1", "--set", "d_model=8", "--set", "depth=1", "--set", "length=8")
    words += ("--anyway",)
    home = {"HOME": "/proc/nowhere", "XDG_CACHE_HOME": "/proc/nowhere/cache", "SUFFICE_DATA": ""}
    done = _suffice(*words, "--anyway", "--out", "o", "--quiet", place=tmp_path, **home)
    assert done.returncode in (11, 12), done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "o" / "report.html").exists()
    refused = _suffice("train", "--out", "t", "--quiet", place=tmp_path, **home)
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr


def test_a_clock_that_stands_or_goes_back_begins_a_run_of_its_own(tmp_path, monkeypatch):
    class Stopped(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2020, 1, 1, tzinfo=tz)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "datetime", Stopped)
    names = []
    for _ in range(3):
        run = options.new_run("mine")
        run.mkdir(parents=True)
        names.append(run.name)
    assert names == [f"mine-20200101-00000{n}" for n in range(3)]
