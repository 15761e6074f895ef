"""Training language models: by steps over windows of tokens."""

from suffice.train.language.fit import LMRun, Measured, fit_lm
from suffice.train.language.loss import (
    Amount,
    Batch,
    CrossEntropy,
    Objective,
    ObjectiveSource,
    Windows,
    amount,
    evaluate_lm,
)
from suffice.train.language.settings import LMTraining

__all__ = [
    "Amount",
    "Batch",
    "CrossEntropy",
    "LMRun",
    "LMTraining",
    "Measured",
    "Objective",
    "ObjectiveSource",
    "Windows",
    "amount",
    "evaluate_lm",
    "fit_lm",
]
