"""The exported page as a file."""

from __future__ import annotations

import pytest

from suffice.errors import ConfigError
from suffice.studio import export
from suffice.studio.bundle import bundle


def test_the_page_is_one_file(tmp_path):
    path = export(tmp_path / "site" / "deep")
    assert path.name == "index.html"
    assert [one.name for one in path.parent.iterdir()] == ["index.html"]
    assert path.read_text("utf-8") == bundle(served=False).html
    assert path.stat().st_size < 300_000
    assert "fetch(" not in path.read_text("utf-8")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        export(tmp_path / "file" / "site")


def test_facts_cannot_end_their_element():
    html = bundle(served=True).html
    facts = html.split('id="facts">')[1].split("</script>")[0]
    assert facts.startswith("{")
    assert facts.endswith("}")
    assert "<" not in facts
