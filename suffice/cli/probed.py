"""What a probe found, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from suffice.measure.statistics import Summary
from suffice.probe import Ablation, CheckpointReport, Finding, Recall, Report
from suffice.probe.report import ALARM, FAILED

WIDTH = 100  # columns where the output is no terminal
KILO = 1024
MARK = "*"


def tell(found: Report | CheckpointReport, folder: Path | None) -> None:
    """Print tables of everything, then what became of the controls."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    if isinstance(found, Report):
        for task in dict.fromkeys(one.task for one in found.findings):
            _task(console, [one for one in found.findings if one.task == task])
    else:
        _recalls(console, found)
        _ablations(console, found.ablations)
    _say(console, _controls(found))
    if folder is not None:
        _say(console, f"results: {folder}")


def _task(console: Console, found: Sequence[Finding]) -> None:
    """Print one task: questions down, mechanisms across."""
    names = list(dict.fromkeys(one.mechanism for one in found))
    table = Table("accuracy, %", *names, box=None, pad_edge=False)
    for view in dict.fromkeys(one.view for one in found):
        shown = {one.mechanism: one for one in found if one.view == view}
        table.add_row(view or "test", *(_cell(shown.get(name)) for name in names))
    first = {name: next(one for one in found if one.mechanism == name) for name in names}
    table.add_row("solved at step", *(one.solved_at for one in first.values()))
    table.add_row("state of a layer", *(size(one.state) for one in first.values()))
    _say(console, f"\n{found[0].task}, chance {found[0].chance:.1%}")
    console.print(table)


def _cell(one: Finding | None) -> str:
    if one is None:
        return "-"
    mark = "" if not one.control else (f" {ALARM.partition(':')[0]}" if one.above else MARK)
    return f"{percent(one.accuracy)}{mark}"


def percent(found: Summary) -> str:
    """Return a mean and half its interval in percent.

    Example:
        >>> percent(Summary(n=1, mean=0.5, sd=None, low=None, high=None))
        '50.0'
    """
    if found.high is None:
        return f"{100 * found.mean:.1f}"
    return f"{100 * found.mean:.1f} ±{100 * (found.high - found.mean):.1f}"


def size(count: float) -> str:
    """Return bytes in words.

    Example:
        >>> size(512.0), size(6144.0)
        ('512 B', '6.0 KiB')
    """
    return f"{count:.0f} B" if count < KILO else f"{count / KILO:.1f} KiB"


def _recalls(console: Console, found: CheckpointReport) -> None:
    columns = ("asked", "back", "accuracy, %", "chance, %", "gain, nats", "")
    table = Table(*columns, box=None, pad_edge=False)
    for one in found.recalls:
        table.add_row(
            one.name,
            f"{one.back}",
            percent(one.accuracy),
            f"{100 * one.chance:.1f}",
            "" if one.gain is None else _half(one.gain),
            one.verdict,
        )
    far = "everything" if found.reach is None else f"{found.reach} tokens back"
    _say(console, f"recall of drawn tokens, {found.rows} rows each; the model can hear {far}")
    console.print(table)


def _ablations(console: Console, found: Sequence[Ablation]) -> None:
    if not found:
        _say(console, "\nno branches: every layer hears in one way, and all alike")
        return
    _say(console, "\nbranches switched off: the rise of the loss, nats per token")
    for branch, layers in dict.fromkeys((one.branch, one.layers) for one in found):
        _say(console, f"{branch} ({layers})")
        for one in found:
            if one.branch == branch:
                change = f"{one.before:.3f} {_interval(one.change)}"
                _say(console, f"  {one.on}: {change}, {one.verdict}")


def _half(found: Summary) -> str:
    """Return a mean and half its interval."""
    return f"{found.mean:+.2f}" + ("" if found.high is None else f" ±{found.high - found.mean:.2f}")


def _interval(found: Summary) -> str:
    if found.low is None:
        return f"{found.mean:+.4f}"
    return f"{found.mean:+.4f} ({found.low:+.4f} to {found.high:+.4f})"


def _controls(found: Report | CheckpointReport) -> str:
    """Return what became of the controls."""
    good = len(found.controls) - len(found.alarms)
    told = [f"\n{MARK} {FAILED}: {good} of {len(found.controls)}"]
    told += [
        f"  {reason}: {count}"
        for reason, count in _counted([one.control for one in found.controls if not one.above])
    ]
    return "\n".join([*told, *(f"{ALARM}: {_where(one)} ({one.control})" for one in found.alarms)])


def _counted(reasons: Sequence[str]) -> list[tuple[str, int]]:
    return [(reason, reasons.count(reason)) for reason in dict.fromkeys(reasons)]


def _where(one: Finding | Recall) -> str:
    if isinstance(one, Recall):
        return one.name
    return ", ".join(filter(None, (one.task, one.mechanism, one.view)))


def _say(console: Console, told: str) -> None:
    console.print(told, markup=False, highlight=False, soft_wrap=True)
