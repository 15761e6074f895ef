"""What the server gives, and to whom."""

from __future__ import annotations

import http.client
import json
import socket

import pytest

from suffice.errors import ConfigError
from suffice.studio import Folders, served
from suffice.studio.server import LARGEST, _comparison
from suffice.studio.server import answers as table

JSON = {"Content-Type": "application/json"}


def asked(studio, method, path, body=None, **headers):
    """Ask as a program would; return the status, the headers and what was told."""
    line = http.client.HTTPConnection("127.0.0.1", studio.port, timeout=10)
    line.request(method, path, body, {name.replace("_", "-"): v for name, v in headers.items()})
    got = line.getresponse()
    told = got.read()
    line.close()
    return got.status, got.headers, told


def question(studio, name, request):
    status, _, told = asked(
        studio, "POST", f"/api/{name}", json.dumps(request), Content_Type="application/json"
    )
    return status, json.loads(told)


def test_the_page_comes_with_its_policy(studio):
    status, headers, told = asked(studio, "GET", "/")
    assert status == 200
    assert told.startswith(b"<!DOCTYPE html>")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("host", ["studio.example", "127.0.0.1", "127.0.0.1:1", "evil@127.0.0.1"])
def test_other_hosts_are_refused(studio, host):
    for method in ("GET", "POST"):
        status, _, told = asked(studio, method, "/", Host=host)
        assert status == 403
        assert b"on this machine itself" in told


def test_this_machine_may_be_called_by_its_name(studio):
    assert asked(studio, "GET", "/", Host=f"localhost:{studio.port}")[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1"])
def test_other_pages_are_refused(studio, origin):
    status, _, told = asked(studio, "POST", "/api/calculate", "{}", **JSON, Origin=origin)
    assert status == 403
    assert b"another page" in told


def test_it_listens_at_one_address_alone(studio):
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", studio.port), timeout=2)


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml",
        "/%2e%2e/pyproject.toml",
        "/js/start.js",
        "/api/calculate",
        "/index.html",
    ],
)
def test_no_file_is_served(studio, path):
    status, _, told = asked(studio, "GET", path)
    assert status == 404
    assert b"there is nothing at" in told


def test_unknown_questions_are_refused(studio):
    assert question(studio, "nothing", {}) == (404, {"error": "nothing answers to /api/nothing."})


@pytest.mark.parametrize(
    ("body", "headers", "status", "told"),
    [
        ("{}", {"Content-Type": "text/plain"}, 415, "a question is JSON"),
        ("{", JSON, 400, "no JSON"),
        ("null", JSON, 400, "empty"),
        ("[" * 100_000, JSON, 400, "no JSON"),
        ("[]", JSON, 400, "a list of compositions"),
        ("", JSON | {"Content-Length": str(LARGEST + 1)}, 413, "smaller file"),
        ("", JSON | {"Content-Length": "-1"}, 415, "with its length"),
    ],
)
def test_wrong_questions_are_refused_in_words(studio, body, headers, status, told):
    got, _, answer = asked(studio, "POST", "/api/calculate", body, **headers)
    assert got == status
    assert told in json.loads(answer)["error"]


def test_an_error_of_its_own_is_no_trace(monkeypatch):
    def broken(request):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("suffice.studio.server.answers", lambda _: {"calculate": broken})
    logged = []
    with served(log=logged.append) as studio:
        status, told = question(studio, "calculate", {})
    assert status == 500
    assert "secret" not in told["error"]
    assert "ZeroDivisionError" in told["error"]
    assert isinstance(logged[0], ZeroDivisionError)


def test_ports_are_checked():
    with pytest.raises(ConfigError, match="--port 70000: give 1 to 65535"), served(port=70_000):
        pass
    with (
        served() as first,
        pytest.raises(ConfigError, match="cannot be had"),
        served(port=first.port),
    ):
        pass


def test_a_browser_that_goes_away_is_no_error(studio, capfd):
    line = socket.create_connection(("127.0.0.1", studio.port))
    line.sendall(b"POST /api/calculate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-")
    line.close()
    assert asked(studio, "GET", "/")[0] == 200
    assert capfd.readouterr().err == ""


def test_every_question_has_an_answer():
    assert {"calculate", "pattern"} <= set(table(Folders()))


def test_a_comparison_has_a_name():
    with pytest.raises(ConfigError, match="a comparison is asked for with its folder and its na"):
        _comparison(Folders(), [])
