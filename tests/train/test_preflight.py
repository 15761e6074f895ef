from __future__ import annotations

import pytest

from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.train import Training
from suffice.train.loop import refuse

from .cases import images, tokens

TRAINING = Training(epochs=1, batch_size=4, learning_rate=0.1)


@pytest.mark.parametrize("name", ["train", "validation"])
def test_an_empty_split_is_refused(name):
    dataset = images(**{name: 0})
    with pytest.raises(DataError, match=rf"the {name}\w* split of images has no rows"):
        refuse(dataset, TRAINING, checkpoint=None, resume=False)


def test_an_augmentation_of_tokens_is_refused():
    training = Training(epochs=1, batch_size=4, learning_rate=0.1, augment="shift")
    with pytest.raises(ConfigError, match="augment='shift' is for images, tokens has tokens"):
        refuse(tokens(), training, checkpoint=None, resume=False)


def test_resuming_without_a_checkpoint_is_refused():
    with pytest.raises(ConfigError, match="resume=True without a checkpoint"):
        refuse(images(), TRAINING, checkpoint=None, resume=True)


def test_resuming_from_nothing_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist, so there is nothing to resume"):
        refuse(images(), TRAINING, checkpoint=tmp_path / "a", resume=True)


def test_a_folder_that_is_not_there_is_refused_before_training(tmp_path):
    with pytest.raises(CheckpointError, match="the folder of .*x/a does not exist or cannot be"):
        refuse(images(), TRAINING, checkpoint=tmp_path / "x" / "a", resume=False)


def test_what_can_run_passes(tmp_path):
    assert refuse(images(), TRAINING, checkpoint=tmp_path / "a", resume=False) is None
    assert refuse(tokens(), TRAINING, checkpoint=None, resume=False) is None
