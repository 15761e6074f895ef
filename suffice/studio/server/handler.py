"""One request: the page, or a question of it; anything else is refused in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from suffice.errors import SufficeError
from suffice.studio.page import bundle
from suffice.studio.server.answers import Answer

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
