from __future__ import annotations

import gzip
import hashlib
import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from suffice.data.files import DataFile, cache, locate, read, record
from suffice.errors import DataError

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
    assert site.asked == ["part.gz"]
    assert locate(FILE.path) == home / FILE.path
    assert list(mine.iterdir()) == []


def test_a_download_with_another_sha256_is_refused(home: Path, site):
    site.files["part.gz"] = gzip.compress(CONTENT + b"!")
    with pytest.raises(DataError, match=r"part\.gz: is truncated or altered \(sha256 [0-9a-f]{64}"):
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
    with pytest.raises(DataError, match=r"part\.gz cannot be read \(Is a directory\); delete it"):
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
    with pytest.raises(DataError, match=r"SUFFICE_DATA=.*nowhere is not a folder; name an exist"):
        locate(FILE.path)


def test_an_unwritable_cache_is_told(home: Path, site):
    home.parent.mkdir()
    home.write_text("a file where the folder belongs")
    site.files["part.gz"] = gzip.compress(CONTENT)
    with pytest.raises(DataError, match=r"cannot write .*part\.gz"):
        read(replace(FILE, urls=(site.url("part.gz"),)))


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache() == tmp_path / "suffice"
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "me")
    for ignored in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache() == tmp_path / "me" / ".cache" / "suffice"


def test_no_home_is_told(monkeypatch: pytest.MonkeyPatch):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(DataError, match="no home folder to keep data in; set XDG_CACHE_HOME or"):
        cache()
