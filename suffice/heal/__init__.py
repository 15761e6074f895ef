"""Trains a converted language model back towards its teacher, beside a control."""

from suffice.heal.heal import Healed, HealingReport, heal, save
from suffice.heal.settings import Healing
from suffice.heal.stages import Stage
from suffice.heal.text import Texts

__all__ = ["Healed", "Healing", "HealingReport", "Stage", "Texts", "heal", "save"]
