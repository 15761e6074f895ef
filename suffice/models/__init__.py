"""Models that take any attention spec in any block."""

from suffice.models.classifier import Classifier, ClassifierConfig
from suffice.models.vit import ViT, ViTConfig

__all__ = ["Classifier", "ClassifierConfig", "ViT", "ViTConfig"]
