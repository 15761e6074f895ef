"""Cells in processes of one machine: each trains a cell at a time, with threads of its own.

A worker that is lost (killed, out of memory) gives its cell back, and another one goes on from the
cell's checkpoint. What a cell becomes does not depend on how many work beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from suffice.errors import DataError, StateError
from suffice.reproduce.finished import Key
from suffice.reproduce.order import Order
from suffice.reproduce.watch import Watch

LOSSES = 3  # of workers with the same cell, before that cell is given up
START = """
try:
    from suffice.reproduce.worker import main
    main()
except KeyboardInterrupt:  # also while modules are loaded
    raise SystemExit(130) from None
"""
GRACE = 20.0  # seconds a worker has to write its checkpoint after Ctrl-C


@dataclass(kw_only=True)
class Jobs:
    """Workers, the cells they share and what became of them.

    Args:
        order: what every worker is told first.
        keys: cells to train, in this order.
        watch: told what happens.
        deadline: no cell is begun after this time of `time.monotonic`; None for none.
    """

    order: Order
    keys: list[Key]
    watch: Watch
    deadline: float | None = None
    done: list[Key] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _losses: Counter[Key] = field(default_factory=Counter)
    _failure: Exception | None = None
    _processes: set[subprocess.Popen[str]] = field(default_factory=set)
    _stopped: bool = False
    _left: deque[Key] = field(default_factory=deque)

    def run(self, jobs: int) -> list[Key]:
        """Train the cells in this many processes and return those that were finished.

        Raises:
            DataError: what a worker told that it could not do.
            StateError: if a cell lost its worker too often.
            KeyboardInterrupt: on Ctrl-C; the workers have written their checkpoints.
        """
        self._left = deque(self.keys)
        # not Thread.join: interrupted by Ctrl-C, it takes a living thread for ended (Python 3.11)
        ended = [threading.Event() for _ in range(min(jobs, len(self.keys)))]
        for number, event in enumerate(ended):
            threading.Thread(target=self._lane, args=(number, event), daemon=True).start()
        try:
            for event in ended:
                while not event.wait(0.1):
                    pass
        except KeyboardInterrupt:
            self._stop(signal.SIGINT)
            until = time.monotonic() + GRACE
            for event in ended:
                event.wait(max(0.0, until - time.monotonic()))
            self._stop(signal.SIGKILL)
            raise
        if self._failure is not None:
            raise self._failure
        return self.done

    def _next(self) -> Key | None:
        """Take the next cell, None when no more is to begin."""
        with self._lock:
            over = self.deadline is not None and time.monotonic() >= self.deadline
            if self._stopped or self._failure is not None or over or not self._left:
                return None
            return self._left.popleft()

    def _lane(self, number: int, ended: threading.Event) -> None:
        """Keep one worker busy; replace it when it is lost."""
        process: subprocess.Popen[str] | None = None
        try:
            while (key := self._next()) is not None:
                if process is None:
                    process = self._start()
                self.watch.begin(number, key)
                if not self._train(process, number, key):
                    self._end(process)
                    process = None
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            self._fail(error)
        finally:
            if process is not None:
                self._end(process)
            ended.set()

    def _train(self, process: subprocess.Popen[str], number: int, key: Key) -> bool:
        """Have one cell trained; False if the worker is of no more use."""
        with contextlib.suppress(OSError):  # its death is told by the end of what it says
            process.stdin.write(json.dumps(key) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            if "step" in answer:
                self.watch.step(number, *answer["step"])
            elif "done" in answer:
                with self._lock:
                    self.done.append(key)
                self.watch.end(number, key)
                return True
            else:
                self._fail(DataError(answer["error"]))
                return False
        if not self._stopped:
            self._lost(key)
        return False

    def _lost(self, key: Key) -> None:
        """Give a cell back, or give it up."""
        with self._lock:
            self._losses[key] += 1
            self._left.appendleft(key)
        self.watch.lost(key)
        if self._losses[key] >= LOSSES:
            mechanism, heads, seed = key
            self._fail(
                StateError(
                    f"{LOSSES} workers were lost while they trained {mechanism} with {heads} "
                    f"heads, seed {seed}; is there memory enough for --jobs as many?"
                )
            )

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._failure = self._failure or error

    def _start(self) -> subprocess.Popen[str]:
        """Start a worker in a session of its own, so that Ctrl-C reaches it once."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.order.threads)}
        process = subprocess.Popen(
            [sys.executable, "-c", START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        with self._lock:
            self._processes.add(process)
            if self._stopped:
                process.kill()
        process.stdin.write(self.order.to_line())
        return process

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Let a worker go and wait until it has gone."""
        with contextlib.suppress(OSError):
            process.stdin.write("\n")
            process.stdin.close()
        process.stdout.close()
        process.wait()
        with self._lock:
            self._processes.discard(process)

    def _stop(self, number: signal.Signals) -> None:
        """Send a signal to every worker; no further cell is begun."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.send_signal(number)
