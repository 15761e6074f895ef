"""Looks at a growing comparison that were declared before, kept in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from suffice.comparison.external.readers import Question
from suffice.comparison.results import Results
from suffice.comparison.scores import MIN_SEEDS
from suffice.errors import ConfigError
from suffice.utils.files import read_record, write_json
from suffice.utils.records import encode


class NotYetError(ConfigError):
    """The verdict is asked for between two declared looks."""


@dataclass(frozen=True, kw_only=True)
class Look:
    seeds: int  # seeds of each name
    scores: dict[str, str]  # digest of the scores that were seen, by name and seed
    code: int  # exit code of the verdict
    sentence: str  # the verdict


@dataclass(frozen=True, kw_only=True)
class Plan:
    looks: tuple[int, ...]  # numbers of seeds, rising
    asked: str  # metrics, names and margins
    seen: tuple[Look, ...] = ()  # the looks so far


def check_looks(question: Question) -> None:
    """Refuse looks that do not rise from the fewest seeds on, or that no file keeps."""
    looks = question.looks
    if bool(looks) != bool(question.state):
        raise ConfigError(
            "--looks and --state: give both, the numbers of seeds at which you look and the file "
            "that keeps what was seen."
        )
    if looks and (looks[0] < MIN_SEEDS or any(b <= a for a, b in pairwise(looks))):
        raise ConfigError(
            f"--looks {','.join(map(str, looks))}: give rising numbers of seeds from {MIN_SEEDS} "
            "on, such as 3,5,8."
        )


def opened(path: Path, every: Sequence[Results]) -> tuple[Plan, int, dict[str, str]]:
    """Return the plan in a file, the seeds there are, and the digests of their scores."""
    looks, names = every[0].external.looks, [name for name, _ in every[0].pairs()]
    asked = "; ".join(f"{r.task} {r.metric} {r.margin:g} {', '.join(names)}" for r in every)
    plan = Plan(looks=looks, asked=asked)
    if path.exists():
        plan = read_record(Plan, path, advice="Name another file with --state.")
    if (plan.looks, plan.asked) != (looks, asked):
        raise ConfigError(
            f"{path} was begun with looks at {_listed(plan.looks)} seeds of {plan.asked}; ask the "
            "same again, or name another file with --state."
        )
    counts = {len(r.select(name, 0)) for r in every for name in names}
    if len(counts) > 1:
        raise ConfigError("--looks: give every name the same number of seeds.")
    seeds, scores = counts.pop(), _digests(every)
    for look in plan.seen:
        changed = [key for key, value in look.scores.items() if scores.get(key) != value]
        if changed:
            had = seeds in {look.seeds for look in plan.seen}
            again = f"the look at {seeds} seeds was had" if had else "runs were changed"
            raise ConfigError(
                f"{path}: {again}; {changed[0]} has other scores now. A second look at other "
                "scores would make the intervals wrong: add seeds up to the next declared look."
            )
    if seeds not in looks:
        later = [look for look in looks if look > seeds]
        if not later:
            raise ConfigError(
                f"{seeds} seeds are more than the last of the looks at {_listed(looks)}; ask with "
                "those, or declare looks before the next comparison."
            )
        raise NotYetError(
            f"undecided: {seeds} seeds are between the declared looks at {_listed(looks)}, and "
            f"looking more often would make the intervals wrong; the next look is at {later[0]}."
        )
    return plan, seeds, scores


def keep(path: Path, plan: Plan, look: Look) -> None:
    """Write a look to the file; one that was had is there already."""
    if look.seeds not in {seen.seeds for seen in plan.seen}:
        write_json(path, encode(asdict(replace(plan, seen=(*plan.seen, look)))))


def _listed(looks: Sequence[int]) -> str:
    return ", ".join(map(str, looks))


def _digests(every: Sequence[Results]) -> dict[str, str]:
    hashes: dict[str, hashlib._Hash] = {}
    for results in every:
        for cell in results.cells:
            key = f"{cell.mechanism} seed {cell.seed}"
            rows = results.rows.get(cell.key)
            value = cell.test_accuracy if results.better is None else cell.scores[results.metric]
            content = np.array([value]) if rows is None else np.ascontiguousarray(rows.right)
            hashes.setdefault(key, hashlib.sha256()).update(content.tobytes())
    return {key: content.hexdigest()[:16] for key, content in hashes.items()}
