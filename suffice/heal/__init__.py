"""A converted language model trained back towards what it was, beside a control."""

from suffice.heal.heal import Healed, heal, save
from suffice.heal.report import HealingReport, Stage
from suffice.heal.settings import Healing
from suffice.heal.text import Texts

__all__ = ["Healed", "Healing", "HealingReport", "Stage", "Texts", "heal", "save"]
