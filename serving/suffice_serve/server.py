"""uvicorn with slow-client timeouts, a connection limit and programmatic shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from suffice.errors import ConfigError

HEAD_SECONDS = 15.0  # in which the head of a request must have come
WRITE_SECONDS = 30.0  # in which a client must read what fills its connection
GRACE_SECONDS = 30.0  # for answers that are being written when the server stops
CONNECTIONS = 4096
SWITCH_SECONDS = 5e-4  # the engine waits this long for the event loop, not ten times as long
LARGEST_HEAD = 1 << 15  # bytes


class Protocol(H11Protocol):
    """HTTP/1.1 that gives up clients which do not send what they began, or never read."""

    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for a request, not for ever."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        super().data_received(data)
        if self._is_answering():
            self._stop(self._head_timer)
            self._head_timer = None
        elif self._head_timer is None:
            self._await_head()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._close_if_silent)

    def _close_if_silent(self) -> None:
        self._head_timer = None
        if not self._is_answering() and not self.transport.is_closing():
            self.transport.abort()

    def pause_writing(self) -> None:
        """Wait for the client to read, not for ever."""
        super().pause_writing()
        self._stop(self._write_timer)
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on."""
        self._stop(self._write_timer)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        for timer in (self._head_timer, self._write_timer):
            self._stop(timer)
        super().connection_lost(exc)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


class Server(uvicorn.Server):
    """A server that ends as it was told to, without raising the signal again."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and tell."""
        await super().startup(sockets)
        self.ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGINT, SIGTERM and SIGHUP as the end; the second one ends at once."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals are the main thread's
            return
        names = ("SIGINT", "SIGTERM", "SIGHUP")
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002 - of uvicorn
        """Stop, gracefully the first time."""
        self.force_exit = self.should_exit
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 = a free one.

    Raises:
        ConfigError: if the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen at {host}:{port} ({reason}); give another --host or --port."
        ) from error
    listener.setblocking(False)
    return listener


def make(app: ASGIApp, ready: Callable[[], None] = lambda: None) -> Server:
    """Return a server of an application; it calls `ready` when it answers."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="on",
        loop="asyncio",
        log_level="error",
        access_log=False,
        server_header=False,
        backlog=1024,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=int(GRACE_SECONDS),
        h11_max_incomplete_event_size=LARGEST_HEAD,
    )
    return Server(config, ready)


def run(app: ASGIApp, listener: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Answer requests until a signal, then finish those that are being answered."""
    _allow_connections()
    sys.setswitchinterval(SWITCH_SECONDS)
    make(app, ready).run([listener])


def _allow_connections() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 256
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
