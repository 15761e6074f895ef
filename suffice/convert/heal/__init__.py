"""Trains a converted language model back towards its teacher, with a control."""

from suffice.convert.heal.heal import Healed, HealingReport, heal, save
from suffice.convert.heal.settings import Healing
from suffice.convert.heal.stages import Stage
from suffice.convert.heal.text import Texts

__all__ = ["Healed", "Healing", "HealingReport", "Stage", "Texts", "heal", "save"]
