"""A running studio."""

from __future__ import annotations

import dataclasses
import importlib
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from suffice.errors import ConfigError, SufficeError, unknown
from suffice.studio.attention_maps import Maps
from suffice.studio.calculator import calculate
from suffice.studio.drawings import pattern_answer
from suffice.studio.folders import Folders
from suffice.studio.page import bundle


def advice(request: Any) -> dict[str, Any]:
    """Ask the adviser and return what it says as plain data.

    Args:
        request: fields of the adviser's request; None = not given.

    Raises:
        ConfigError: if the adviser is not there, or for a field it does not know.
    """
    if not isinstance(request, dict):
        raise ConfigError("the adviser is asked with a form of fields.")
    try:
        adviser = importlib.import_module("suffice.advise")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "this version of suffice has no adviser; install one whose `suffice advise --help` "
            "answers."
        ) from error
    known = {field.name for field in dataclasses.fields(adviser.Request)}
    given = {name: value for name, value in request.items() if value is not None}
    for name in given:
        if name not in known:
            raise unknown("field of the adviser", name, known)
    return adviser.advise(adviser.Request(**given)).to_json()


Answer = Callable[[Any], dict[str, Any]]


def answers(folders: Folders) -> dict[str, Answer]:
    """Return the functions that answer, each given a request as plain data."""
    maps = Maps(folders.checkpoints)
    return {
        "calculate": calculate,
        "pattern": pattern_answer,
        "comparisons": lambda _: _comparisons(folders),
        "comparison": lambda request: _comparison(folders, request),
        "checkpoints": maps.listed,
        "checkpoint": maps.about,
        "maps": maps.overview,
        "map": maps.layer,
        "advise": advice,
    }


def _comparisons(folders: Folders) -> dict[str, Any]:
    from suffice.studio.comparisons import found

    return {"found": [one.to_json() for one in found(folders.results)]}


def _comparison(folders: Folders, request: Any) -> dict[str, Any]:
    from suffice.studio.comparisons import read, told

    if not isinstance(request, dict):
        raise ConfigError("a comparison is asked for with its folder and its name.")
    results = read(folders.results, request.get("root"), request.get("name"))
    return told(results, request.get("cost") or "flops", request.get("margin"))


ADDRESS = "127.0.0.1"
LARGEST = 32 << 20  # bytes of a request: a picture as text
GIVEN_UP = "the studio met an error of its own ({}); the terminal it was started in shows more."


class Handler(BaseHTTPRequestHandler):
    """Answers to this machine's own browser.

    A page of somebody else's that sends a browser here is told apart by the host it names and by
    the origin it comes from.
    """

    answers: dict[str, Answer]
    log: Callable[[BaseException], None]
    protocol_version = "HTTP/1.1"
    server_version = "suffice-studio"
    sys_version = ""
    timeout = 60  # seconds without a word

    def do_GET(self) -> None:
        """Give the page."""
        if not self._own():
            return
        if self.path.partition("?")[0] != "/":
            self._refuse(404, f"there is nothing at {self.path:.80}; open / instead.")
            return
        page = bundle(served=True)
        self._send(200, page.html.encode(), "text/html; charset=utf-8", page.policy)

    def do_POST(self) -> None:
        """Answer a question of the page."""
        if not self._own():
            return
        name = self.path.removeprefix("/api/")
        if name == self.path or name not in self.answers:
            self._refuse(404, f"nothing answers to {self.path:.80}.")
            return
        body = self._body()
        if body is not None:
            self._answer(name, body)

    def _own(self) -> bool:
        """Refuse what another page or another host sends."""
        port = self.server.server_address[1]
        hosts = {f"{name}:{port}" for name in (ADDRESS, "localhost")}
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in hosts:
            self._refuse(403, f"open http://{ADDRESS}:{port}/ on this machine itself.")
            return False
        if origin is not None and origin.removeprefix("http://") not in hosts:
            self._refuse(403, "another page may not ask the studio.")
            return False
        return True

    def _body(self) -> Any:
        """Return what a question says, None if it was refused."""
        length = self.headers.get("Content-Length", "")
        if self.headers.get_content_type() != "application/json" or not length.isdigit():
            self._refuse(415, "a question is JSON with its length.")
            return None
        if int(length) > LARGEST:
            self._refuse(413, f"a question of more than {LARGEST >> 20} MiB; send a smaller file.")
            return None
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            self._refuse(400, "the question is no JSON.")
            return None
        if body is None:
            self._refuse(400, "the question is empty.")
        return body

    def _answer(self, name: str, body: Any) -> None:
        try:
            told = json.dumps(self.answers[name](body), allow_nan=False)
        except SufficeError as error:
            self._refuse(400, str(error))
        except Exception as error:  # noqa: BLE001 - a page is told in words, the terminal why
            self.log(error)
            self._refuse(500, GIVEN_UP.format(type(error).__name__))
        else:
            self._send(200, told.encode(), "application/json")

    def _refuse(self, code: int, told: str) -> None:
        self.close_connection = True
        self._send(code, json.dumps({"error": told}).encode(), "application/json")

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
        """Say nothing of requests that go well."""


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


__all__ = ["Served", "answers", "served"]
