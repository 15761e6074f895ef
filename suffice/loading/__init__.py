"""A trained model from its folder, and its predictions for rows of files."""

from suffice.loading.loading import (
    ImageClassifier,
    LanguageModel,
    Prediction,
    TextClassifier,
    TextTranslator,
    load,
    locate,
)

__all__ = [
    "ImageClassifier",
    "LanguageModel",
    "Prediction",
    "TextClassifier",
    "TextTranslator",
    "load",
    "locate",
]
