from __future__ import annotations

import json
import signal
import sys

import pytest

from suffice.errors import CheckpointError, ConfigError
from suffice.train import Interrupted, Silent
from suffice.train.language import Log, fit_lm

from .texts import files, settings, tiny


def steps(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_resumed_log_forgets_what_came_after_its_checkpoint(tmp_path):
    path = tmp_path / "log.jsonl"
    first = Log(path, step=0)
    for step in (1, 2, 3):
        first.write({"step": step, "loss": 0.5})
    with path.open("a") as file:
        file.write('{"step": 2, "los')
    first.close()
    again = Log(path, step=2)
    again.write({"step": 3, "loss": 0.25})
    assert steps(path) == [1, 2, 3]
    assert json.loads(path.read_text().splitlines()[-1])["loss"] == 0.25
    Log(path, step=0)
    assert steps(path) == []
    (tmp_path / "log.jsonl").unlink()
    Log(path, step=5)
    assert steps(path) == []


def test_a_log_that_cannot_be_written_is_refused(tmp_path):
    path = tmp_path / "log.jsonl"
    log = Log(path, step=0)
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match=r"log\.jsonl"):
        log.write({"step": 1})
    Log(None, step=0).write({"step": 1})


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
    options |= {"tensorboard": tmp_path / "events"}
    texts = files(tmp_path)
    with pytest.raises(Interrupted, match="after step 3"):
        fit_lm(tiny(), *texts, settings(), seed=0, progress=Press(), **options)
    run = fit_lm(tiny(), *texts, settings(), seed=0, resume=True, **options)
    result = EventAccumulator(str(tmp_path / "events")).Reload()
    names = {"train_loss", "validation_loss", "learning_rate", "seconds", "tokens"}
    assert set(result.Tags()["scalars"]) == names
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    for name in names:
        events = result.Scalars(name)
        assert [event.step for event in events] == [2, 4, 6]
        assert [event.value for event in events] == pytest.approx([line[name] for line in lines])
    losses = [record.validation_loss for record in run.measured]
    assert [event.value for event in result.Scalars("validation_loss")] == pytest.approx(losses)


def test_a_folder_of_tensorboard_needs_its_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"TensorBoard needs .*: pip install .*\[tensorboard\]"):
        Log(None, tmp_path, step=0)
