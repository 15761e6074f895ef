"""Cells on the machines of a Ray cluster: the same orders, the same files.

Every machine must see the working folder (a shared file system), because cells are written there.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from suffice.errors import ConfigError, DataError, StateError, SufficeError
from suffice.papers.jobs import LOSSES, Order, Watch, told
from suffice.papers.results import Key

if TYPE_CHECKING:
    from suffice.papers.jobs import Means


LOCAL, NEAREST = "local", "auto"
PAUSE = 1.0  # seconds between two looks at what is done
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}


def on_ray(
    order: Order, keys: list[Key], watch: Watch, deadline: float | None, means: Means
) -> list[Key]:
    """Train cells on a cluster and return the keys of those that were finished.

    Args:
        order: what every cell shares.
        keys: cells, in this order.
        watch: told what happens.
        deadline: no cell is begun after this time of `time.monotonic`.
        means: how many at a time, and the cluster's address.

    Raises:
        ConfigError: if Ray is not installed or there is no such cluster.
        DataError: what a machine told that it could not do.
        StateError: if a cell lost its machine too often.
    """
    ray = _ray()
    address = means.address or NEAREST
    try:
        if address == LOCAL:
            ray.init(num_cpus=means.jobs * order.threads, include_dashboard=False, **QUIET)
        else:
            ray.init(address=address, **QUIET)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"no Ray cluster at {address!r} ({error}); start one with `ray start --head`, or give "
            "--address local."
        ) from error
    try:
        return _all(ray, order, keys, watch, deadline, means.jobs)
    finally:
        ray.shutdown()


def train_one(line: str, key: list[Any]) -> str | None:
    """Train one cell on whichever machine this is; return what went wrong, None if nothing did.

    Args:
        line: the order, as one line.
        key: mechanism, heads, seed.
    """
    import json

    from suffice.papers.jobs import serve

    answers: list[dict[str, Any]] = []
    serve([line, json.dumps(key) + "\n"], answers.append)
    return answers[-1].get("error")


def _all(
    ray: Any,
    order: Order,
    keys: list[Key],
    watch: Watch,
    deadline: float | None,
    jobs: int,
) -> list[Key]:
    """Keep as many cells running as asked until none is left."""
    # a lost machine is noticed here, where the cell goes back, not repeated unseen
    task = ray.remote(num_cpus=order.threads, max_retries=0, max_calls=1)(train_one)
    left, losses, done = list(keys), dict.fromkeys(keys, 0), []
    running: dict[Any, tuple[int, Key]] = {}
    lanes = set(range(jobs))
    while running or (left and not _over(deadline)):
        while left and lanes and not _over(deadline):
            number, key = lanes.pop(), left.pop(0)
            running[task.remote(order.to_line(), list(key))] = (number, key)
            watch.begin(number, key)
        ready, _ = ray.wait(list(running), timeout=PAUSE)
        for reference in ready:
            number, key = running.pop(reference)
            lanes.add(number)
            if _taken(ray, reference, key):
                done.append(key)
                watch.end(number, key)
                continue
            losses[key] += 1
            watch.lost(key)
            left.insert(0, key)
            if losses[key] >= LOSSES:
                raise StateError(
                    f"{LOSSES} machines of the cluster were lost while they trained {told(key)}."
                )
    return done


def _taken(ray: Any, reference: Any, key: Key) -> bool:
    """Take the answer about a cell; False if its machine or process was lost.

    Raises:
        DataError: what it could not do.
    """
    try:
        wrong = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, SufficeError) else error
        raise DataError(f"{told(key)}: {cause}") from error
    except ray.exceptions.RayError:
        return False
    if wrong is not None:
        raise DataError(wrong)
    return True


def _over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _ray() -> Any:
    """Import Ray.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "--engine ray needs Ray, which is not installed: pip install 'suffice[ray]'; or leave "
            "--engine out to train on this machine alone."
        ) from error
    return ray
