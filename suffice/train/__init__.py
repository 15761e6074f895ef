"""Training: the loop, its settings, its files, its processes, and experiments by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffice.utils import ByName, attributes

if TYPE_CHECKING:
    from suffice.models.checkpoint import load, load_model_into, save, save_model
    from suffice.train.distributed import Processes, current, processes, resolve_device
    from suffice.train.engine import Interrupted
    from suffice.train.loop import Epoch, TrainingRun, fit
    from suffice.train.scoring import EvaluationScore, evaluate
    from suffice.train.settings import Training
    from suffice.utils.progress import Progress, Silent, show

_NAMES = {
    "models.checkpoint": ("load", "load_model_into", "save", "save_model"),
    "train.distributed": ("Processes", "current", "processes", "resolve_device"),
    "train.engine": ("Interrupted",),
    "train.loop": ("Epoch", "TrainingRun", "fit"),
    "train.scoring": ("EvaluationScore", "evaluate"),
    "train.settings": ("Training",),
    "utils.progress": ("Progress", "Silent", "show"),
}
__getattr__ = attributes(__name__, ByName.of("suffice", _NAMES))

__all__ = [
    "Epoch",
    "EvaluationScore",
    "Interrupted",
    "Processes",
    "Progress",
    "Silent",
    "Training",
    "TrainingRun",
    "current",
    "evaluate",
    "fit",
    "load",
    "load_model_into",
    "processes",
    "resolve_device",
    "save",
    "save_model",
    "show",
]
