"""Measuring a trained language model on the tasks that are published for them."""

from suffice.measure.evaluation.evaluate import TASKS, evaluate_task
from suffice.measure.evaluation.perplexity import perplexity
from suffice.measure.evaluation.result import Evaluation, Score

__all__ = ["TASKS", "Evaluation", "Score", "evaluate_task", "perplexity"]
