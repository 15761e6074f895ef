"""The studio's server: sends the page, and answers its requests about files and models."""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from suffice.errors import ConfigError, SufficeError
from suffice.utils.boundary import translate_exception
from suffice.utils.files import parse_json
from suffice_studio import steps
from suffice_studio.attention_maps import MapServer
from suffice_studio.bundle import bundle
from suffice_studio.folders import Folders

Answer = Callable[[Any], dict[str, Any]]  # to a request
ADDRESS = "127.0.0.1"
MAX_REQUEST = 32 << 20  # bytes of a request
MOST_DIGITS = 20  # of its length
SKIP_SECONDS = 10.0  # for which a refused body is read


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running studio."""

    url: str  # address of the page
    port: int  # the port, on this machine alone


@contextmanager
def served(
    folders: Folders | None = None,
    port: int = 0,
    log: Callable[[BaseException], None] = traceback.print_exception,
) -> Iterator[Served]:
    """Serve the studio in background threads until the end of the block.

    Args:
        folders: folders that it may open; None: only those of the package.
        port: port to listen at; 0: a free one.
        log: function called with unexpected errors.

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
            f"--port {port} cannot be used ({error.strerror or error}); give another, or 0 for a "
            "free one."
        ) from error
    bundle(served=True)  # so that the first request need not wait
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    thread.daemon = True
    thread.start()
    try:
        port = server.server_address[1]
        yield Served(url=f"http://{ADDRESS}:{port}/", port=port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answers(folders: Folders) -> dict[str, Answer]:
    """Return the functions that answer requests, by name."""
    maps = MapServer(folders.checkpoints)
    return {
        "comparisons": lambda _: _comparisons(folders),
        "comparison": lambda request: _comparison(folders, request),
        "checkpoints": maps.checkpoints,
        "checkpoint": maps.checkpoint,
        "maps": maps.overview,
        "map": maps.head,
        "steps": steps.answer,
    }


def _comparisons(folders: Folders) -> dict[str, Any]:
    from suffice_studio.comparisons import list_comparisons

    return {"comparisons": [asdict(listed) for listed in list_comparisons(folders.results)]}


def _comparison(folders: Folders, request: Any) -> dict[str, Any]:
    from suffice_studio.comparisons import describe, read

    if not isinstance(request, dict):
        raise ConfigError("a request for a comparison is an object with its folder and its name.")
    results = read(folders.results, request.get("root"), request.get("name"))
    return describe(results, request.get("cost") or "flops", request.get("margin"))


def _is_length(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < MOST_DIGITS


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a browser that closed the connection."""


class Handler(BaseHTTPRequestHandler):
    """Answers the browser of this machine; requests from other hosts or origins are refused."""

    answers: dict[str, Answer]
    log: Callable[[BaseException], None]
    protocol_version = "HTTP/1.1"
    server_version = "suffice-studio"
    sys_version = ""
    timeout = 60  # seconds
    unread = 0  # bytes of the request's body

    def do_GET(self) -> None:
        """Send the page."""
        if not self._is_local():
            return
        if self.path.partition("?")[0] != "/":
            self._refuse(404, f"there is nothing at {self.path:.80}; open / instead.")
            return
        page = bundle(served=True)
        self._send(200, page.html.encode(), "text/html; charset=utf-8", page.policy)

    def do_POST(self) -> None:
        """Answer a request of the page."""
        length = self.headers.get("Content-Length", "")
        self.unread = int(length) if _is_length(length) else 0
        if not self._is_local():
            return
        name = self.path.removeprefix("/api/")
        if name == self.path or name not in self.answers:
            self._refuse(404, f"nothing answers to {self.path:.80}.")
            return
        body = self._body()
        if body is not None:
            self._answer(name, body)

    def _is_local(self) -> bool:
        port = self.server.server_address[1]
        hosts = {f"{name}:{port}" for name in (ADDRESS, "localhost")}
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in hosts:
            self._refuse(403, f"open http://{ADDRESS}:{port}/ on this machine itself.")
            return False
        if origin is not None and origin.removeprefix("http://") not in hosts:
            self._refuse(403, "another page may not send requests to the studio.")
            return False
        return True

    def _body(self) -> Any:
        length = self.headers.get("Content-Length", "")
        if self.headers.get_content_type() != "application/json" or not _is_length(length):
            self._refuse(415, "a request is JSON with its length.")
            return None
        if self.unread > MAX_REQUEST:
            self._refuse(
                413, f"a request of more than {MAX_REQUEST >> 20} MiB; send a smaller file."
            )
            return None
        try:
            content, self.unread = self.rfile.read(self.unread), 0
            body = parse_json(content)
        except (ValueError, RecursionError):
            self._refuse(400, "the request is not JSON.")
            return None
        if body is None:
            self._refuse(400, "the request is empty.")
        return body

    def _answer(self, name: str, body: Any) -> None:
        try:
            answer = json.dumps(self.answers[name](body), allow_nan=False)
        except ConnectionError:
            self.close_connection = True
        except SufficeError as error:
            self._refuse(400, str(error))
        except BaseException as error:  # noqa: BLE001 - a panic of the tokenizers is not an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            if reason := translate_exception(error):
                self._refuse(400, str(reason))
                return
            self.log(error)
            self._refuse(
                500,
                f"the studio failed with {type(error).__name__}; the terminal it was started in "
                "shows more.",
            )
        else:
            self._send(200, answer.encode(), "application/json")

    def _refuse(self, code: int, reason: str) -> None:
        self.close_connection = True
        self._skip_body()
        self._send(code, json.dumps({"error": reason}).encode(), "application/json")

    def _skip_body(self) -> None:
        """Read what a client still sends: it would see a reset in place of the answer."""
        end = time.monotonic() + SKIP_SECONDS
        self.connection.settimeout(SKIP_SECONDS)
        with suppress(OSError):
            while self.unread and time.monotonic() < end:
                part = self.rfile.read1(min(self.unread, 1 << 16))
                self.unread = self.unread - len(part) if part else 0

    def _send(
        self, code: int, content: bytes, kind: str, policy: str = "default-src 'none'"
    ) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", f"{policy}; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: Any) -> None:
        """Do not log requests."""
