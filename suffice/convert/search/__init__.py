"""Searches the attention of each layer of a trained model that meets a budget."""

from suffice.convert.search.options import Option, library
from suffice.convert.search.problem import Limit, budget_of
from suffice.convert.search.result import Combination, OptionScore, Quantity, SearchResult
from suffice.convert.search.search import SearchTexts, search

__all__ = [
    "Combination",
    "Limit",
    "Option",
    "OptionScore",
    "Quantity",
    "SearchResult",
    "SearchTexts",
    "budget_of",
    "library",
    "search",
]
