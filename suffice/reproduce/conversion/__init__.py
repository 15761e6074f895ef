"""What conversions cost a trained model, and what healing gives back: a table of real ones."""

from suffice.reproduce.conversion.rows import Conversions, Row, finished, publish, published
from suffice.reproduce.conversion.run import run
from suffice.reproduce.conversion.sheet import lines, sheet, to_csv
from suffice.reproduce.conversion.subjects import SUBJECTS, Subject, wanted

__all__ = [
    "SUBJECTS",
    "Conversions",
    "Row",
    "Subject",
    "finished",
    "lines",
    "publish",
    "published",
    "run",
    "sheet",
    "to_csv",
    "wanted",
]
