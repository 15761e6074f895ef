from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from suffice.data import files
from suffice.data.files import DataFile, atomically, cache, locate, members, read, record
from suffice.errors import DataError
from tests.data.jpegs import packed

# find

CONTENT = b"some numbers" * 50
FILE = DataFile(path="set/part.gz", sha256=hashlib.sha256(CONTENT).hexdigest())


def put(root: Path, data: bytes, path: str = FILE.path) -> Path:
    at = root / path
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_bytes(data)
    return at


@pytest.fixture
def mine(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("SUFFICE_DATA", str(tmp_path / "mine"))
    return tmp_path / "mine"


def test_the_users_folder_comes_before_the_cache(home: Path, mine: Path):
    in_cache = put(home, gzip.compress(CONTENT))
    assert locate(FILE.path) == in_cache
    in_mine = put(mine, gzip.compress(CONTENT, 1))
    assert locate(FILE.path) == in_mine
    assert read(FILE) == CONTENT


@pytest.mark.parametrize(
    ("suffix", "compress"), [("gz", gzip.compress), ("xz", lzma.compress), ("tar.gz", bytes)]
)
def test_the_sha256_is_of_the_content(home: Path, suffix: str, compress):
    put(home, compress(CONTENT), f"set/part.{suffix}")
    assert read(replace(FILE, path=f"set/part.{suffix}")) == CONTENT


def test_an_absent_file_is_downloaded_into_the_cache_once(home: Path, mine: Path, site):
    site.files["part.gz"] = gzip.compress(CONTENT)
    file = replace(FILE, urls=(site.url("part.gz"),))
    assert read(file) == CONTENT
    assert read(file) == CONTENT
    assert site.requests == ["part.gz"]
    assert locate(FILE.path) == home / FILE.path
    assert list(mine.iterdir()) == []


def test_a_download_with_another_sha256_is_refused(home: Path, site):
    site.files["part.gz"] = gzip.compress(CONTENT + b"!")
    with pytest.raises(DataError, match=r"part\.gz"):
        read(replace(FILE, urls=(site.url("part.gz"),)))
    assert locate(FILE.path) is None


def test_absent_and_offline_says_what_to_put_where(home: Path, mine: Path, site):
    with pytest.raises(DataError) as caught:
        read(replace(FILE, urls=(site.url("gone.gz"),)))
    assert str(caught.value) == (
        f"set/part.gz was found neither below SUFFICE_DATA={mine} nor below {home} and could not "
        f"be downloaded ({site.url('gone.gz')}: HTTP Error 404: Not Found); put it at "
        f"{home}/set/part.gz, or at set/part.gz below a folder of yours that SUFFICE_DATA names."
    )


def test_absent_without_an_address_says_so(home: Path):
    with pytest.raises(DataError, match=r"SUFFICE_DATA \(not set\) nor .*\(it has no address\)"):
        read(FILE)


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        ("gz", lambda: gzip.compress(CONTENT)[:-12]),
        ("gz", lambda: gzip.compress(CONTENT)[:25] + b"\xff" * 30),
        ("gz", lambda: b"plainly not gzip"),
        ("xz", lambda: lzma.compress(CONTENT)[:-12]),
        ("xz", lambda: b"plainly not xz"),
        ("gz", lambda: gzip.compress(CONTENT[:-1])),
        ("xz", lambda: b""),
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(home: Path, suffix: str, damage):
    at = put(home, damage(), f"set/part.{suffix}")
    with pytest.raises(DataError, match="delete it and run again") as caught:
        read(replace(FILE, path=f"set/part.{suffix}"))
    assert str(caught.value).startswith(str(at))


def test_a_folder_in_the_place_of_a_file_cannot_be_read(home: Path):
    (home / FILE.path).mkdir(parents=True)
    with pytest.raises(DataError, match=r"part\.gz"):
        read(FILE)


def test_a_recorded_sha256_serves_converted_files_alone(home: Path):
    at = put(home, gzip.compress(b"converted"))
    record(at).write_text(hashlib.sha256(b"converted").hexdigest() + "\n")
    assert read(replace(FILE, converted=True)) == b"converted"
    with pytest.raises(DataError, match="truncated or altered"):
        read(FILE)
    at.write_bytes(gzip.compress(b"tampered"))
    with pytest.raises(DataError, match="truncated or altered"):
        read(replace(FILE, converted=True))
    record(at).write_bytes(b"\xff")
    with pytest.raises(DataError, match="truncated or altered"):
        read(replace(FILE, converted=True))


def test_a_users_folder_that_is_none_is_refused(home: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("SUFFICE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="SUFFICE_DATA=.*nowhere is not a folder"):
        locate(FILE.path)


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache() == tmp_path / "suffice"
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "me")
    for ignored in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache() == tmp_path / "me" / ".cache" / "suffice"


# download

BODY = b"right" * 100_000


def downloaded(site, *names: str, console: Console | None = None) -> bytes:
    urls = tuple(site.url(name) for name in names)
    sha256 = hashlib.sha256(BODY).hexdigest()
    return read(DataFile(path="to/file.tar.gz", sha256=sha256, urls=urls), console=console)


def test_the_next_address_is_tried_when_one_fails(home: Path, site):
    site.files |= {"bad/file": b"wrong", "good/file": BODY}
    assert downloaded(site, "none/file", "bad/file", "good/file") == BODY
    assert site.requests == ["none/file", "bad/file", "good/file"]
    assert (home / "to/file.tar.gz").read_bytes() == BODY
    assert [path.name for path in (home / "to").iterdir()] == ["file.tar.gz"]


def test_every_address_gives_its_reason_and_nothing_is_kept(home: Path, site):
    site.files["file"] = b"wrong"
    with pytest.raises(DataError, match="none: HTTP Error 404: Not Found"):
        downloaded(site, "none", "file")
    assert list((home / "to").iterdir()) == []


def test_a_connection_closed_early_is_refused(home: Path, site):
    site.files["file"] = BODY
    site.short.add("file")
    with pytest.raises(DataError, match="500,000 bytes"):
        downloaded(site, "file")
    assert list((home / "to").iterdir()) == []


def test_a_silent_server_times_out(home: Path, site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("suffice.data.files.TIMEOUT", 0.2)
    site.files["file"] = BODY
    site.mute.add("file")
    with pytest.raises(DataError, match="timed out"):
        downloaded(site, "file")
    assert list((home / "to").iterdir()) == []


def test_a_download_shows_a_bar_on_a_console_alone(home: Path, site, capsys):
    site.files["file.gz"] = BODY
    screen = io.StringIO()
    downloaded(site, "file.gz", console=Console(file=screen, force_terminal=True, width=120))
    assert "file.gz" in screen.getvalue()
    assert "500.0/500.0 kB" in screen.getvalue()
    (home / "to/file.tar.gz").unlink()
    downloaded(site, "file.gz")
    assert capsys.readouterr() == ("", "")


# write


def test_the_file_appears_when_the_block_ends(tmp_path: Path):
    target = tmp_path / "new" / "file"
    with atomically(target) as temporary:
        temporary.write_text("whole")
        number = temporary.stat().st_ino
        assert not target.exists()
    assert target.stat().st_ino == number  # moved, not copied
    assert target.read_text() == "whole"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    target = tmp_path / "file"
    target.write_text("old")

    def interrupted() -> None:
        with atomically(target) as temporary:
            temporary.write_text("ha")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_is_a_data_error(tmp_path: Path):
    def filled() -> None:
        with atomically(tmp_path / "file") as temporary:
            temporary.write_text("ha")
            raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"cannot write .*file \(No space left on device\)"):
        filled()
    assert list(tmp_path.iterdir()) == []


# members

FORM = re.compile(r"top/(\w+)\.jpg")


def test_files_of_the_form_are_read_in_order_and_all_else_is_passed_over():
    link = tarfile.TarInfo("top/c.jpg")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    hard = tarfile.TarInfo("top/d.jpg")
    hard.type, hard.linkname = tarfile.LNKTYPE, "top/a.jpg"
    folder = tarfile.TarInfo("top/e.jpg")
    folder.type = tarfile.DIRTYPE
    files = {
        "top/b.jpg": b"second",
        "../top/a.jpg": b"outside",
        "/top/a.jpg": b"root",
        "top/a.jpg.exe": b"longer",
        "top/a.jpg": b"first",
    }
    result = members(packed(files, link, hard, folder), FORM, "it")
    assert [(match[1], content) for match, content in result] == [("b", b"second"), ("a", b"first")]


@pytest.mark.parametrize("part", [0, 10, 40, 5_000])
def test_a_truncated_archive_is_refused(part):
    archive = packed({"top/a.jpg": np.random.default_rng(0).bytes(10_000)})
    with pytest.raises(DataError, match=r"it is truncated or damaged \("):
        list(members(archive[:part], FORM, "it"))


def test_a_member_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(files, "LARGEST_MEMBER", 4)
    assert len(list(members(packed({"top/a.jpg": b"1234"}), FORM, "it"))) == 1
    with pytest.raises(DataError, match=r"a\.jpg.*5 bytes"):
        list(members(packed({"top/a.jpg": b"12345"}), FORM, "it"))
