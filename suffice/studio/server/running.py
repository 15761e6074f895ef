"""A running studio."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import ThreadingHTTPServer

from suffice.errors import ConfigError
from suffice.studio.folders import Folders
from suffice.studio.page import bundle
from suffice.studio.server.answers import answers
from suffice.studio.server.handler import ADDRESS, Handler


@dataclass(frozen=True, kw_only=True)
class Served:
    """A studio that answers.

    Args:
        url: of its page.
        port: it listens at, on this machine alone.
    """

    url: str
    port: int


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a browser that went away."""


@contextmanager
def served(
    folders: Folders | None = None,
    port: int = 0,
    log: Callable[[BaseException], None] = traceback.print_exception,
) -> Iterator[Served]:
    """Serve the studio inside the block, from threads of its own.

    Args:
        folders: it may open; None = only what comes with the package.
        port: to listen at; 0 = a free one.
        log: is given errors that are the studio's own.

    Yields:
        Where it is.

    Raises:
        ConfigError: for a port that is not legal or not free.

    Example:
        >>> with served() as studio:
        ...     studio.url == f"http://127.0.0.1:{studio.port}/"
        True
    """
    if not 0 <= port <= 65_535:  # noqa: PLR2004
        raise ConfigError(f"--port {port}: give 1 to 65535, or 0 for a free one.")
    table = answers(folders or Folders())
    handler = type("Handler", (Handler,), {"answers": table, "log": staticmethod(log)})
    try:
        server = _Server((ADDRESS, port), handler)
    except OSError as error:
        raise ConfigError(
            f"--port {port} cannot be had ({error.strerror or error}); give another, or 0 for a "
            "free one."
        ) from error
    bundle(served=True)  # so that the first request need not wait
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    thread.daemon = True
    thread.start()
    try:
        own = server.server_address[1]
        yield Served(url=f"http://{ADDRESS}:{own}/", port=own)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
