from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
import torch

from suffice.errors import ConfigError
from suffice.patterns import Causal, Full, PerHead, Window
from suffice.view import draw, picture
from suffice.view.drawing import HIDDEN, cell_styles
from suffice.view.picture import arrange, svg
from tests.view.patterns import COMPOSED

SVG = "{http://www.w3.org/2000/svg}"


def colours(drawing, cells):
    """The colour of every cell, [T, S] of "#rrggbb"."""
    palette = [HIDDEN, *(style.colour for style in cell_styles(drawing.parts))]
    return [[palette[number] for number in row] for row in cells.tolist()]


def painted(group, cells):
    """Fill cells with the colours of the paths of an SVG group."""
    filled = [[HIDDEN] * cells.shape[1] for _ in range(cells.shape[0])]
    for path in group.findall(f"{SVG}path"):
        for column, row, long in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", path.get("d")):
            for at in range(int(column), int(column) + int(long)):
                assert filled[int(row)][at] == HIDDEN
                filled[int(row)][at] = path.get("fill")
    return filled


@pytest.mark.parametrize("pattern", COMPOSED, ids=repr)
def test_the_svg_shows_every_cell_in_its_colour(pattern):
    drawing = draw(pattern, 33)
    root = ElementTree.fromstring(svg(drawing))
    groups = root.findall(f"{SVG}g")
    assert len(groups) == len(drawing.panels)
    for group, panel in zip(groups, drawing.panels, strict=True):
        assert painted(group, panel.cells) == colours(drawing, panel.cells)


def test_every_word_of_the_page_is_written():
    drawing = draw(COMPOSED[-2], 20)
    root = ElementTree.fromstring(svg(drawing, "mine"))
    written = [text.text for text in root.iter(f"{SVG}text")]
    assert written == [words.text for words in arrange(drawing, "mine").words]
    for wanted in ("mine", "queries", "keys", "head 1", "head 2", *(t for _, t in drawing.legend)):
        assert wanted in written


def test_the_title_is_the_pattern_and_its_counts():
    words = [words.text for words in arrange(draw(Window(2) & Causal(), 8)).words]
    assert words[0] == "Window(size=2) & Causal()"
    assert words[1] == "15 of 64 pairs visible (23.4%), 64 computed in blocks of 64"


def test_positions_stand_along_the_axes():
    words = [words.text for words in arrange(draw(Full(), 4, 20)).words]
    keys = words[words.index("queries") + 1 :]
    assert keys[:7] == ["0", "4", "8", "12", "16", "16", "18"]  # keys, then the last four queries
    words = [words.text for words in arrange(draw(Full(), 20, 4)).words]
    assert words[words.index("queries") + 1 :][:4] == ["0", "2", "0", "4"]


@pytest.mark.parametrize("pattern", COMPOSED, ids=repr)
@pytest.mark.parametrize("length", [1, 64, 512])
def test_nothing_stands_on_something_else(pattern, length):
    if length > (pattern.max_length or length):
        return
    page = arrange(draw(pattern, length))
    for frame in page.frames:
        assert frame.x + frame.width <= page.width
        assert frame.y + frame.height <= page.height
        for other in page.frames:
            apart = frame.x + frame.width < other.x or frame.y + frame.height < other.y
            assert other is frame or apart or other.x < frame.x or other.y < frame.y
    below = max(frame.y + frame.height for frame in page.frames)
    assert all(below < y < page.height for _, y, _ in page.marks)
    assert all(0 < words.x < page.width and 0 < words.y < page.height for words in page.words)


def test_more_panels_than_fit_stand_in_rows():
    heads = PerHead(tuple(Window(size) for size in range(1, 7)))
    frames = arrange(draw(heads, 16)).frames
    assert [frame.y == frames[0].y for frame in frames] == [True] * 4 + [False] * 2
    assert [frames[4].x, frames[5].x] == [frames[0].x, frames[1].x]


def test_equal_drawings_are_equal_files(tmp_path):
    one, two = (picture(tmp_path / f"{n}.svg", COMPOSED[6], 33) for n in "ab")
    assert one.read_bytes() == two.read_bytes()
    assert picture(str(tmp_path / "C.SVG"), Full(), 3) == tmp_path / "C.SVG"


def test_text_is_escaped():
    told = svg(draw((Window(1) | Causal()) & Causal(), 3), "a < b & c")
    assert "a &lt; b &amp; c" in told
    assert ElementTree.fromstring(told).find(f"{SVG}title").text == "a < b & c"


@pytest.mark.parametrize("name", ["p.png", "p", "p.svg.txt"])
def test_another_kind_of_file_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=f"cannot be written to .*{name}: name a .svg"):
        picture(tmp_path / name, Full(), 3)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_reported(tmp_path):
    told = "none/p.svg: No such file or directory; name a file in a folder that is there"
    with pytest.raises(ConfigError, match=told):
        picture(tmp_path / "none" / "p.svg", Full(), 3)
    (tmp_path / "d.svg").mkdir()
    with pytest.raises(ConfigError, match="cannot be written to"):
        picture(tmp_path / "d.svg", Full(), 3)


def test_cells_are_whole_pixels():
    for length in (1, 7, 64, 300, 2048):
        frame = arrange(draw(Full(), length)).frames[0]
        assert isinstance(frame.cell, int)
        assert frame.cell >= 1
        assert torch.equal(frame.panel.cells, torch.ones(length, length, dtype=torch.int64))
