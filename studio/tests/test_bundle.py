"""The exported page, and the patterns it draws."""

from __future__ import annotations

import base64
import gzip
import json
import re

import pytest

import suffice
from suffice import patterns
from suffice.comparison.results import write_results
from suffice.errors import ConfigError
from suffice.presets import PRESETS
from suffice.view import expression
from suffice_studio import Folders, export
from suffice_studio.bundle import PATTERN_LENGTHS, answers, bundle, sketches
from tests.comparison.synthetic import realistic


def test_the_page_is_one_file(tmp_path):
    path = export(tmp_path / "site" / "deep")
    assert path.name == "index.html"
    assert [one.name for one in path.parent.iterdir()] == ["index.html"]
    assert path.read_text("utf-8") == bundle(served=False).html
    assert path.stat().st_size < 1_000_000
    assert "fetch(" not in path.read_text("utf-8")


def carried(page):
    """Return the answers that an exported page holds."""
    (packed,) = re.findall(r'"answers":"([^"]*)"', page.read_text("utf-8"))
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_the_page_carries_comparisons(tmp_path):
    write_results(tmp_path / "runs" / "mine" / "results.json", realistic(seeds=4))
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "results.json").write_text("{")
    folders = Folders(results=(tmp_path / "runs",))
    found = answers(folders)
    listed = [one["name"] for one in found["comparisons {}"]["comparisons"]]
    assert listed[0] == "mine"
    assert "broken" not in listed
    question = 'comparison {"root":0,"name":"mine","cost":"latency"}'
    assert found[question]["cost"] == "latency"
    assert carried(export(tmp_path / "site", folders))[question] == found[question]


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


def test_every_mechanism_is_sketched():
    by_name = sketches()
    assert set(by_name) == set(PRESETS)
    for name, mechanism in by_name.items():
        assert mechanism["summary"].endswith("."), name
        for key, sketch in mechanism["sketches"].items():
            assert int(key.split()[0]) in PATTERN_LENGTHS
            pattern = eval(sketch["expression"], vars(patterns))
            assert pattern.causal == key.endswith("causal"), (name, key)
    assert by_name["linformer"]["sketches"]["64"]["keys"] < 64
    assert "64 causal" not in by_name["linformer"]["sketches"]
    assert not by_name["performer"]["sketches"]["64"]["pairs"]


@pytest.mark.parametrize("name", PRESETS)
def test_the_line_of_a_sketch_makes_its_pattern(name):
    key, sketch = next(iter(sketches()[name]["sketches"].items()))
    spec = eval(sketch["line"], {"suffice": suffice})  # the page shows this line
    assert expression(spec.pattern) == sketch["expression"], key


def test_each_form_of_a_mechanism_has_a_data_flow_of_its_own():
    for name, facts in sketches().items():
        forms = {key.partition(" ")[2] for key in facts["sketches"]}
        assert {key.partition(" ")[2] for key in facts["flows"]} == forms, name
        assert all(
            key.lstrip().split(" ")[0] in ("", "causal", "4", "2", "1") for key in facts["flows"]
        )
        if len(forms) == 2 and "Full()" in {
            one["expression"] for one in facts["sketches"].values()
        }:
            assert len(set(map(str, facts["flows"].values()))) == len(facts["flows"]), name
