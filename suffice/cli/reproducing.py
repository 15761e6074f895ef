"""What the command line of `suffice reproduce` says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suffice.errors import ConfigError
from suffice.reproduce.work import Means


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line says.

    Args:
        table: name, None for the list.
        run: train what is missing.
        heads: instead of the table's.
        seeds: instead of the table's.
        scale: of the recipe.
        rerun: a cell to train again.
        out: working folder.
        data: files of the user's instead of the task's own.
        publish: write the package's results.
        as_json: print JSON.
        as_csv: print CSV.
        report: draw figures.
        command: the command itself.
        threads: as given, None where not.
        heal_minutes: of each row of the table conversion, None where not given.
        means: how cells are run.

    Raises:
        ConfigError: if two of these contradict each other.
    """

    table: str | None
    run: bool
    heads: tuple[int, ...] | None
    seeds: int | None
    scale: str | None
    rerun: str | None
    out: Path | None
    data: str | None
    publish: bool
    as_json: bool
    as_csv: bool
    report: bool
    command: str
    threads: int | None
    heal_minutes: float | None
    means: Means

    def __post_init__(self) -> None:
        if self.as_json and self.as_csv:
            raise ConfigError("--json and --csv are two forms of one answer; give one of them.")
        if self.seeds is not None and self.seeds < 1:
            raise ConfigError(f"--seeds {self.seeds}: give at least 1.")
        if self.heal_minutes is not None and self.table != "conversion":
            raise ConfigError(
                "--heal-minutes is of the table conversion, whose models are healed; leave it out."
            )
