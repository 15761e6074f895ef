from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from suffice.data.files import download
from suffice.errors import DataError

pytestmark = pytest.mark.usefixtures("home")


def whole(at: Path) -> bytes:
    content = at.read_bytes()
    if content != b"right" * 100_000:
        raise DataError("is altered")
    return content


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "to" / "file.gz"


def test_the_file_is_checked_then_moved(site, target: Path):
    site.files["file.gz"] = b"right" * 100_000

    def accept(at: Path) -> bytes:
        assert not target.exists()
        return whole(at)

    assert download([site.url("file.gz")], target, accept) == b"right" * 100_000
    assert target.read_bytes() == b"right" * 100_000
    assert list(target.parent.iterdir()) == [target]


def test_the_next_address_is_asked_when_one_fails(site, target: Path):
    site.files |= {"bad/file.gz": b"wrong", "good/file.gz": b"right" * 100_000}
    urls = [site.url("none/file.gz"), site.url("bad/file.gz"), site.url("good/file.gz")]
    download(urls, target, whole)
    assert site.asked == ["none/file.gz", "bad/file.gz", "good/file.gz"]
    assert target.read_bytes() == b"right" * 100_000


def test_a_refused_file_is_not_kept(site, target: Path):
    site.files["file.gz"] = b"wrong"
    with pytest.raises(DataError, match=r"http://127.*/file\.gz: is altered"):
        download([site.url("file.gz")], target, whole)
    assert list(target.parent.iterdir()) == []


def test_every_address_gives_its_reason(site, target: Path):
    site.files["file.gz"] = b"wrong"
    with pytest.raises(DataError, match=r"none\.gz: HTTP Error 404: Not Found; .*: is altered"):
        download([site.url("none.gz"), site.url("file.gz")], target, whole)


def test_a_connection_closed_early_is_refused(site, target: Path):
    site.files["file.gz"] = b"right" * 100_000
    site.short.add("file.gz")
    with pytest.raises(DataError, match="closed after 250,000 of 500,000 bytes"):
        download([site.url("file.gz")], target, whole)
    assert list(target.parent.iterdir()) == []


def test_a_silent_server_is_given_up(site, target: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("suffice.data.files.SILENCE", 0.2)
    site.files["file.gz"] = b"right" * 100_000
    site.mute.add("file.gz")
    with pytest.raises(DataError, match=r"file\.gz: timed out"):
        download([site.url("file.gz")], target, whole)
    assert list(target.parent.iterdir()) == []


def test_nobody_listening_is_told(target: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*args: object, **kwargs: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("suffice.data.files.urlopen", refuse)
    with pytest.raises(DataError, match="Connection refused"):
        download(["http://127.0.0.1/file.gz"], target, whole)


def test_the_bar_names_the_file_and_no_console_is_silent(site, target: Path, capsys):
    site.files["file.gz"] = b"right" * 100_000
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    download([site.url("file.gz")], target, whole, console=console)
    assert "file.gz" in screen.getvalue()
    assert "500.0/500.0 kB" in screen.getvalue()
    download([site.url("file.gz")], target, whole)
    assert capsys.readouterr() == ("", "")


def test_an_absent_file_is_told(site, target: Path):
    with pytest.raises(DataError, match=r"none\.gz: HTTP Error 404: Not Found$"):
        download([site.url("none.gz")], target, whole)
