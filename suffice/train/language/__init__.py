"""Training language models: by steps over windows of tokens."""

from suffice.train.language.amount import Amount, amount
from suffice.train.language.batch import Batch, Source, Windows
from suffice.train.language.evaluate import evaluate_lm
from suffice.train.language.fit import fit_lm
from suffice.train.language.history import LMRun, Measured
from suffice.train.language.loss import CrossEntropy, Objective
from suffice.train.language.settings import LMTraining

__all__ = [
    "Amount",
    "Batch",
    "CrossEntropy",
    "LMRun",
    "LMTraining",
    "Measured",
    "Objective",
    "Source",
    "Windows",
    "amount",
    "evaluate_lm",
    "fit_lm",
]
