"""What runs with the project's rights is named by its content, which a tag is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

WORKFLOWS = sorted((Path(__file__).resolve().parents[2] / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_and_keep_no_credentials(path):
    text = path.read_text(encoding="utf-8")
    uses = re.findall(r"uses: *(.*)", text)
    assert uses
    for action in uses:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+(\.\d+)+", action), action
    checkouts = len(re.findall("actions/checkout@", text))
    assert len(re.findall("persist-credentials: false", text)) == checkouts
