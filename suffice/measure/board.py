"""The table of a comparison that fills up while it trains."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from suffice.data.survey import Survey
from suffice.measure.plan import Plan
from suffice.measure.results import Cell
from suffice.measure.training import typical

ACCURACIES = 4  # of single seeds that are spelt out


class Board:
    """Finished cells by mechanism, as a table of 80 columns at most.

    Args:
        plan: of the comparison.
        survey: of its data.
        cells: that were finished before.
    """

    def __init__(self, plan: Plan, survey: Survey, cells: list[Cell]) -> None:
        self.plan, self.survey = plan, survey
        self.cells = list(cells)
        self.closed: set[tuple[str, int]] = set()  # that get no further seed

    def add(self, cell: Cell) -> str:
        """Enter a finished cell, and return it as one line."""
        self.cells.append(cell)
        seconds = sum(epoch["seconds"] for epoch in cell.epochs)
        return (
            f"{cell.mechanism} heads {cell.num_heads} seed {cell.seed}: test accuracy "
            f"{cell.test_accuracy:.1%}, loss {cell.test_loss:.3f}, best epoch {cell.best_epoch} of "
            f"{len(cell.epochs)}, {seconds:.0f} s"
        )

    def table(self) -> Table:
        """Return the table as it stands."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        table.add_column("mechanism", no_wrap=True, max_width=24, overflow="ellipsis")
        table.add_column("heads", justify="right")
        table.add_column("seeds", justify="right")
        table.add_column("test accuracy, seed by seed", no_wrap=True)
        table.add_column("loss", justify="right")
        table.add_column("s/epoch", justify="right")
        for mechanism, heads in self.plan.pairs:
            table.add_row(mechanism, str(heads), *self._row(mechanism, heads))
        floors = {f'always "{self.survey.majority_class}"': self.survey.majority}
        floors["blind guess"] = self.survey.chance
        for name, value in floors.items():
            if value is not None:
                table.add_row(Text(name), "", "", f"{100 * value:.1f}", "", "", style="dim")
        return table

    def _row(self, mechanism: str, heads: int) -> list[str]:
        cells = sorted(
            (c for c in self.cells if (c.mechanism, c.num_heads) == (mechanism, heads)),
            key=lambda cell: cell.seed,
        )
        count = f"{len(cells)}" + (
            "" if (mechanism, heads) in self.closed else f"/{self.plan.seeds}"
        )
        if not cells:
            return [count, "", "", ""]
        each = [f"{100 * cell.test_accuracy:.1f}" for cell in cells]
        if len(each) > ACCURACIES:
            each = [*each[: ACCURACIES - 1], "..", each[-1]]
        loss = sum(cell.test_loss for cell in cells) / len(cells)
        pace = typical([cell.seconds_per_epoch for cell in cells])
        return [count, " ".join(each), f"{loss:.3f}", f"{pace:.1f}"]
