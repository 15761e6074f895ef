from __future__ import annotations

import gzip
import re
import tarfile

import numpy as np
import pytest

from suffice.data import files as module
from suffice.data.files import members
from suffice.errors import DataError
from tests.data.jpegs import packed

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
    found = members(packed(files, link, hard, folder), FORM, "it")
    assert [(match[1], content) for match, content in found] == [("b", b"second"), ("a", b"first")]


def test_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    list(members(packed({"top/a.jpg": b"x"}), FORM, "it"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("part", [0, 10, 40, 5_000])
def test_a_truncated_archive_is_refused(part):
    whole = packed({"top/a.jpg": np.random.default_rng(0).bytes(10_000)})
    with pytest.raises(DataError, match=r"^it is truncated or damaged \("):
        list(members(whole[:part], FORM, "it"))


def test_what_is_no_archive_is_refused():
    for content in (b"nothing" * 200, gzip.compress(b"nothing" * 200)):
        with pytest.raises(DataError, match="it is truncated or damaged"):
            list(members(content, FORM, "it"))


def test_a_member_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(module, "MOST", 4)
    assert len(list(members(packed({"top/a.jpg": b"1234"}), FORM, "it"))) == 1
    with pytest.raises(DataError, match=r"it: top/a\.jpg has 5 bytes; too many"):
        list(members(packed({"top/a.jpg": b"12345"}), FORM, "it"))
