"""Which attention each layer of a trained model should have, within a budget."""

from suffice.convert.search.options import Option, library
from suffice.convert.search.problem import Limit, budget_of
from suffice.convert.search.result import Found, Mix, Quantity, Score
from suffice.convert.search.search import Texts, search

__all__ = [
    "Found",
    "Limit",
    "Mix",
    "Option",
    "Quantity",
    "Score",
    "Texts",
    "budget_of",
    "library",
    "search",
]
