"""A column of a table: where its figure stands in a cell and in the paper, how it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from suffice.measure.paper import PaperRow
from suffice.measure.report.numbers import count, loss, percent, seconds
from suffice.measure.results import Cell


@dataclass(frozen=True, kw_only=True)
class Column:
    """One figure of a training.

    Args:
        name: of the field of a cell and of the paper's row, or of one of the cell's scores.
        title: head of the column.
        written: a value as text; values that are written alike share a rank.
        rising: whether more is better.
        of_paper: field of the paper's row; `name` unless told.
        fixed: whether every seed gives the same, so that there is no interval.
    """

    name: str
    title: str
    written: Callable[[float], str]
    rising: bool = False
    of_paper: str = ""
    fixed: bool = False

    def ours(self, cell: Cell) -> float | None:
        """Return the figure of one cell, None where its task does not have it."""
        if hasattr(cell, self.name):
            return getattr(cell, self.name)
        return dict(getattr(cell, "scores", None) or {}).get(self.name)

    def theirs(self, row: PaperRow | None) -> float | None:
        """Return the paper's figure, None where it is not printed."""
        return None if row is None else getattr(row, self.of_paper or self.name, None)


PARAMETERS = Column(name="parameters_layer", title="params/layer", written=count, fixed=True)
EPOCH = Column(name="seconds_per_epoch", title="epoch", written=seconds)
TRAIN = (
    Column(name="train_accuracy", title="train acc", written=percent, rising=True),
    Column(name="train_loss", title="train loss", written=loss),
)
TRAIN_TOP5 = Column(name="train_top5", title="train top-5", written=percent, rising=True)
TEST = (
    Column(name="test_accuracy", title="test acc", written=percent, rising=True),
    Column(name="test_loss", title="test loss", written=loss),
)
TEST_TOP5 = Column(name="test_top5", title="test top-5", written=percent, rising=True)
BALANCED = Column(name="balanced_accuracy", title="balanced acc", written=percent, rising=True)
BLEU = Column(name="bleu", title="BLEU", written="{:.1f}".format, rising=True, of_paper="test_bleu")
PERPLEXITY = Column(name="perplexity", title="perplexity", written="{:.2f}".format)
MODEL = Column(name="parameters_model", title="params", written=count, fixed=True)

CLASSES = (PARAMETERS, EPOCH, *TRAIN, *TEST)
MANY_CLASSES = (PARAMETERS, EPOCH, *TRAIN, TRAIN_TOP5, *TEST, TEST_TOP5)
