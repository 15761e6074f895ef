"""A home of its own for each test, and a web server that never leaves this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no SUFFICE_DATA, no proxy; returns the cache's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("SUFFICE_DATA", raising=False)
    return tmp_path / "cache" / "suffice"


@dataclass
class Site:
    """Files by name; `short` ones close early, `mute` ones send half and then nothing."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    short: set[str] = field(default_factory=set)
    mute: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


@pytest.fixture
def site() -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            page.requests.append(name)
            body = page.files.get(name)
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            complete = name not in page.short | page.mute
            self.wfile.write(body if complete else body[: len(body) // 2])
            if name in page.mute:
                page.closing.wait(1)  # then the connection closes

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        page = Site(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield page
        page.closing.set()
        server.shutdown()
        thread.join(5)
