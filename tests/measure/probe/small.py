"""Tasks and models of a few steps."""

from __future__ import annotations

from dataclasses import replace

from suffice.measure.probe import Task, suite


def small(task: Task, **training: object) -> Task:
    """Return a task with hardly any rows, of narrow models."""
    one = task.recipe
    options = tuple({**dict(one.task_options), "rows": 64}.items())
    given = {"epochs": 1, **training}
    recipe = replace(
        one,
        task_options=options,
        model=replace(one.model, d_model=8, mlp_width=8),
        training=replace(one.training, **given),
    )
    return replace(task, recipe=recipe)


def tasks() -> dict[str, Task]:
    """Return the quick suite, small, by name."""
    return {task.name: small(task) for task in suite(quick=True)}
