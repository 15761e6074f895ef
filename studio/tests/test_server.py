"""What the server gives, and to whom."""

from __future__ import annotations

import http.client
import json
import socket

import pytest

from suffice.errors import ConfigError
from suffice_studio import Folders, served
from suffice_studio.server import MAX_REQUEST, _comparison
from suffice_studio.server import answers as table

JSON = {"Content-Type": "application/json"}


def send(studio, method, path, body=None, **headers):
    """Send a request as a program would; return the status, the headers and the content."""
    line = http.client.HTTPConnection("127.0.0.1", studio.port, timeout=10)
    line.request(method, path, body, {name.replace("_", "-"): v for name, v in headers.items()})
    got = line.getresponse()
    content = got.read()
    line.close()
    return got.status, got.headers, content


def ask(studio, name, request):
    status, _, content = send(
        studio, "POST", f"/api/{name}", json.dumps(request), Content_Type="application/json"
    )
    return status, json.loads(content)


def test_the_page_comes_with_its_policy(studio):
    status, headers, content = send(studio, "GET", "/")
    assert status == 200
    assert content.startswith(b"<!DOCTYPE html>")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("host", ["studio.example", "127.0.0.1", "127.0.0.1:1", "evil@127.0.0.1"])
def test_other_hosts_are_refused(studio, host):
    for method in ("GET", "POST"):
        status, _, content = send(studio, method, "/", Host=host)
        assert status == 403
        assert b"this machine" in content


def test_localhost_is_accepted(studio):
    assert send(studio, "GET", "/", Host=f"localhost:{studio.port}")[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1"])
def test_other_pages_are_refused(studio, origin):
    status, _, content = send(studio, "POST", "/api/comparison", "{}", **JSON, Origin=origin)
    assert status == 403
    assert b"another page" in content


def test_server_listens_on_localhost_only(studio):
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", studio.port), timeout=2)


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml",
        "/%2e%2e/pyproject.toml",
        "/js/start.js",
        "/api/comparison",
        "/index.html",
    ],
)
def test_no_file_is_served(studio, path):
    status, _, content = send(studio, "GET", path)
    assert status == 404
    assert b"there is nothing at" in content


def test_unknown_requests_are_refused(studio):
    assert ask(studio, "nothing", {}) == (404, {"error": "nothing answers to /api/nothing."})


@pytest.mark.parametrize(
    ("body", "headers", "status", "content"),
    [
        ("{}", {"Content-Type": "text/plain"}, 415, "JSON"),
        ("{", JSON, 400, "JSON"),
        ("null", JSON, 400, "empty"),
        ("[" * 100_000, JSON, 400, "JSON"),
        ("[]", JSON, 400, "folder and its name"),
        (" " * (MAX_REQUEST + (1 << 20)), JSON, 413, "smaller file"),
        (" " * (1 << 23), {"Content-Type": "text/plain"}, 415, "with its length"),
        (" " * (1 << 23), JSON | {"Origin": "http://evil.example"}, 403, "another page"),
        ("", JSON | {"Content-Length": "-1"}, 415, "with its length"),
    ],
)
def test_wrong_requests_are_refused(studio, body, headers, status, content):
    got, _, answer = send(studio, "POST", "/api/comparison", body, **headers)
    assert got == status
    assert content in json.loads(answer)["error"]


def test_unexpected_errors_are_logged_and_not_sent(monkeypatch):
    def broken(_):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("suffice_studio.server.answers", lambda _: {"comparison": broken})
    logged = []
    with served(log=logged.append) as studio:
        status, content = ask(studio, "comparison", {})
    assert status == 500
    assert "secret" not in content["error"]
    assert "ZeroDivisionError" in content["error"]
    assert isinstance(logged[0], ZeroDivisionError)


def test_ports_are_checked():
    with pytest.raises(ConfigError, match="--port 70000"), served(port=70_000):
        pass
    with (
        served() as first,
        pytest.raises(ConfigError, match="--port"),
        served(port=first.port),
    ):
        pass


def test_closed_connection_is_no_error(studio, capfd):
    line = socket.create_connection(("127.0.0.1", studio.port))
    line.sendall(b"POST /api/comparison HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-")
    line.close()
    assert send(studio, "GET", "/")[0] == 200
    assert capfd.readouterr().err == ""


def test_requests_of_every_tab_have_an_answer():
    assert {"comparison", "map", "steps"} <= set(table(Folders()))


def test_a_request_for_a_comparison_is_an_object():
    with pytest.raises(ConfigError, match="folder and its name"):
        _comparison(Folders(), [])
