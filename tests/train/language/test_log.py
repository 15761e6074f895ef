from __future__ import annotations

import json
import signal
import socket
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from suffice.errors import CheckpointError, ConfigError
from suffice.train import Interrupted, Silent
from suffice.train.language import fit_lm
from suffice.train.language.fit import Log

from .texts import files, settings, tiny


def steps(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_resumed_log_forgets_what_came_after_its_checkpoint(tmp_path):
    path = tmp_path / "log.jsonl"
    first = Log(path, {}, step=0)
    for step in (1, 2, 3):
        first.write({"step": step, "loss": 0.5})
    with path.open("a") as file:
        file.write('{"step": 2, "los')
    first.close()
    again = Log(path, {}, step=2)
    again.write({"step": 3, "loss": 0.25})
    assert steps(path) == [1, 2, 3]
    assert json.loads(path.read_text().splitlines()[-1])["loss"] == 0.25
    Log(path, {}, step=0)
    assert steps(path) == []
    (tmp_path / "log.jsonl").unlink()
    Log(path, {}, step=5)
    assert steps(path) == []


def test_a_log_that_cannot_be_written_is_refused(tmp_path):
    path = tmp_path / "log.jsonl"
    log = Log(path, {}, step=0)
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match=r"log\.jsonl"):
        log.write({"step": 1})
    Log(None, {}, step=0).write({"step": 1})


def test_tensorboard_gets_every_number(tmp_path, monkeypatch):
    message = []

    class Writer:
        def __init__(self, folder, purge_step):
            message.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            message.append((name, value, step))

        def close(self):
            message.append("closed")

    board = ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    log = Log(None, {"tensorboard": tmp_path}, step=4)
    log.write({"step": 7, "loss": 0.5, "seconds": 2.0})
    log.close()
    assert message == [
        (str(tmp_path / "tensorboard"), 5),
        ("loss", 0.5, 7),
        ("seconds", 2.0, 7),
        "closed",
    ]


class Press(Silent):
    """Ctrl-C after the third step."""

    def step(self, done, total):
        if done == 3:
            signal.raise_signal(signal.SIGINT)


def test_tensorboard_shows_a_real_training_as_the_lines_do(tmp_path):
    why = "TensorBoard is not installed: pip install 'suffice[tensorboard]'"
    pytest.importorskip("tensorboard", reason=why)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    options = {"checkpoint": tmp_path / "run", "save_every": 1e9, "log": tmp_path / "log.jsonl"}
    options |= {"trackers": {"tensorboard": tmp_path}}
    texts = files(tmp_path)
    with pytest.raises(Interrupted, match="after step 3"):
        fit_lm(tiny(), *texts, settings(), seed=0, progress=Press(), **options)
    run = fit_lm(tiny(), *texts, settings(), seed=0, resume=True, **options)
    result = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    names = {"train_loss", "validation_loss", "learning_rate", "seconds", "tokens"}
    assert set(result.Tags()["scalars"]) == names
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    for name in names:
        events = result.Scalars(name)
        assert [event.step for event in events] == [2, 4, 6]
        assert [event.value for event in events] == pytest.approx([line[name] for line in lines])
    losses = [record.validation_loss for record in run.measured]
    assert [event.value for event in result.Scalars("validation_loss")] == pytest.approx(losses)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Refuse every connection that leaves this machine, and keep Trackio's database here."""
    connect = socket.socket.connect

    def loopback(self, address):
        if isinstance(address, tuple) and not str(address[0]).startswith(("127.", "::1", "local")):
            raise OSError(f"a test connects to {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", loopback)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")


def interrupted_and_resumed(folder, tmp_path, name):
    """Train with a tracker, Ctrl-C on the way, and return the lines of the log."""
    options = {"checkpoint": folder / "run", "save_every": 1e9, "log": folder / "log.jsonl"}
    options |= {"trackers": {name: folder}}
    texts = files(tmp_path)
    with pytest.raises(Interrupted, match="after step 3"):
        fit_lm(tiny(), *texts, settings(), seed=0, progress=Press(), **options)
    fit_lm(tiny(), *texts, settings(), seed=0, resume=True, **options)
    return [json.loads(line) for line in options["log"].read_text().splitlines()]


@pytest.mark.filterwarnings("ignore")
def test_trackio_shows_a_real_training_as_the_lines_do(tmp_path, offline):
    pytest.importorskip(
        "trackio", reason="Trackio is not installed: pip install 'suffice[trackio]'"
    )
    from trackio.sqlite_storage import SQLiteStorage

    folder = tmp_path / "mine"
    folder.mkdir()
    lines = interrupted_and_resumed(folder, tmp_path, "trackio")
    logged = SQLiteStorage.get_logs("suffice", "mine")
    assert [one["step"] for one in logged] == [line["step"] for line in lines] == [2, 4, 6]
    for one, line in zip(logged, lines, strict=True):
        assert one["validation_loss"] == pytest.approx(line["validation_loss"])


@pytest.mark.filterwarnings("ignore")
def test_wandb_gets_a_real_training_offline(tmp_path, offline):
    pytest.importorskip("wandb", reason="W&B is not installed: pip install 'suffice[wandb]'")
    folder = tmp_path / "mine"
    folder.mkdir()
    lines = interrupted_and_resumed(folder, tmp_path, "wandb")
    logged, patience = {}, time.monotonic() + 30
    while len(logged) < 3 and time.monotonic() < patience:  # its service writes in the background
        time.sleep(0.1)
        for path in folder.glob("wandb/offline-run-*/*.wandb"):
            logged |= wandb_history(path)
    assert sorted(logged) == [line["step"] for line in lines] == [2, 4, 6]
    for line in lines:
        assert logged[line["step"]] == pytest.approx(line["validation_loss"])


def wandb_history(path):
    """Return the validation loss of each step in a run's file, a log of LevelDB behind 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, data, found = path.read_bytes(), 7, b"", {}
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # the rest of a block is empty
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        data += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            record = Record()
            record.ParseFromString(data)
            items = record.history.item
            values = {(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in items}
            if values:
                found[values.get("_step", record.history.step.num)] = values["validation_loss"]
            data = b""
    return found


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_trackers_that_begin_again_skip_what_they_have(tmp_path, monkeypatch, name):
    logged = []
    run = SimpleNamespace(log=lambda values, step: logged.append((values, step)), finish=list)
    library = SimpleNamespace(init=lambda **options: run, Settings=dict)
    monkeypatch.setitem(sys.modules, name, library)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3)))
    log = Log(path, {name: tmp_path}, step=2)
    for step in (3, 4):
        log.write({"step": step, "loss": 0.5})
    assert logged == [({"loss": 0.5}, 4)]


@pytest.mark.parametrize(
    ("name", "module"),
    [("tensorboard", "torch.utils.tensorboard"), ("trackio", "trackio"), ("wandb", "wandb")],
)
def test_a_tracker_that_is_absent_is_refused(tmp_path, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"{name} needs .*: pip install .*\[{name}\]"):
        Log(None, {name: tmp_path}, step=0)


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="tensorboard"):
        Log(None, {"tensorbord": tmp_path}, step=0)
