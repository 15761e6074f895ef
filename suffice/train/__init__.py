"""Training: the loop, its settings, its files, its processes and its display."""

from suffice.models.checkpoint import load, load_model_into, save, save_model
from suffice.train.distributed import Processes, current, processes, resolve_device
from suffice.train.engine import Interrupted
from suffice.train.evaluate import EvaluationScore, evaluate
from suffice.train.loop import Epoch, TrainingRun, fit
from suffice.train.settings import Training
from suffice.utils.progress import Progress, Silent, show

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
