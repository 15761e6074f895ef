"""The sliders of a layer: its drawing, its pattern and its costs move along."""

from __future__ import annotations

import statistics
from xml.etree import ElementTree

import pytest

from studio.tests.links import link, linked
from suffice import AttentionSpec
from suffice.choose.fits.calculator import state_bytes
from suffice.patterns import Block, Causal, Full, Global, Pattern, Strided, Window
from suffice.view import flow, flow_svg
from tests.choose.fits.decoder import EMPTY

D_MODEL, TOKENS = 64, 64
SLOW = 3  # times the room of a frame, for a slow processor


@pytest.fixture
def layer(page, static):
    """The tab with grouped queries, causal."""
    page.goto(static.as_uri() + link("patterns", mechanism="gqa", length=TOKENS, causal=True))
    page.locator("#layer-costs dd").first.wait_for()
    return page


def slide(page, name: str, place: int) -> None:
    """Move a slider to a place, and wait for the frame that shows it."""
    page.evaluate(
        """([name, place]) => new Promise((done) => {
            const slider = document.querySelector(`#layer-${name}`);
            slider.value = place;
            slider.dispatchEvent(new Event("input", {bubbles: true}));
            requestAnimationFrame(() => requestAnimationFrame(done));
        })""",
        [name, place],
    )


def costs(page) -> list[int | str]:
    """Return the exact numbers of KV cache, a further token, FLOPs and parameters."""
    cells = page.locator("#layer-costs dd").all()
    titles = [cell.get_attribute("title") for cell in cells]
    return [
        int(title.split()[0].replace(",", "")) if title else cell.inner_text().split("\n")[0]
        for title, cell in zip(titles, cells, strict=True)
    ]


def expected(heads: int, kv: int, pattern: Pattern, window: int = 0, sinks: int = 0) -> list[int]:
    """Return the same numbers as the library counts them."""
    sizes = EMPTY | {"d_model": D_MODEL, "layers": 1, "num_heads": heads, "num_kv_heads": kv}
    sizes |= {"window": window, "sinks": sinks}
    spec = AttentionSpec(d_model=D_MODEL, num_heads=heads, num_kv_heads=kv, pattern=pattern)
    cost = spec.cost(TOKENS)
    cache, longer = (state_bytes(sizes, tokens) or 0 for tokens in (TOKENS, TOKENS + 1))
    return [cache, longer - cache, cost.visible_flops, cost.parameters]


def texts(page) -> list[str]:
    """Return what is written in the drawing of the flow."""
    words = page.locator("#pattern-flow svg.flow text").all_text_contents()
    return sorted(words)


def drawn_by_python(heads: int, kv: int, pattern: Pattern) -> list[str]:
    spec = AttentionSpec(d_model=D_MODEL, num_heads=heads, num_kv_heads=kv, pattern=pattern)
    root = ElementTree.fromstring(flow_svg(flow(spec, TOKENS), standalone=False))
    return sorted("".join(node.itertext()) for node in root.findall(".//{*}text"))


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16])
def test_heads_move_from_multi_head_to_multi_query(layer, heads):
    page = layer
    slide(page, "heads", [1, 2, 4, 8, 16].index(heads))
    choices = [kv for kv in (16, 8, 4, 2, 1) if kv <= heads]
    for place, kv in enumerate(choices):
        slide(page, "kv", place)
        assert costs(page) == expected(heads, kv, Causal())
        assert texts(page) == drawn_by_python(heads, kv, Causal())
        assert page.locator("#pattern-flow .head").count() == heads + 2 * kv
        name = "standard" if kv == heads else "mqa" if kv == 1 else "gqa"
        assert page.input_value("#pattern-mechanism") == name
        words = page.get_attribute("#layer-kv", "aria-valuetext")
        assert words == f"{kv}, { {'standard': 'MHA'}.get(name, name.upper()) }"


@pytest.mark.parametrize("causal", [True, False])
def test_window_chunk_and_sinks_move_pattern_and_costs(layer, causal):
    page = layer
    page.set_checked("#pattern-causal", causal)

    def check(pattern: Pattern, window: int, sinks: int) -> None:
        pattern = pattern & Causal() if causal else pattern
        wanted: list[int | str] = [*expected(4, 2, pattern, window, sinks)]
        if not causal:
            wanted[:2] = ["none", "none"]
        assert costs(page) == wanted
        assert texts(page) == drawn_by_python(4, 2, pattern)
        assert eval(page.input_value("#pattern-code"), {"__builtins__": {}}, KINDS) == pattern

    assert page.locator("#layer-sinks").is_disabled()
    slide(page, "window", 7)
    check(Window(8), 8, 0)
    assert page.inner_text("#pattern-flow >> xpath=..").startswith("GQA, window of 8")
    slide(page, "sinks", 3)
    check(Window(8) | Global(3), 8, 3)
    slide(page, "chunk", 15)
    check(Block(16) | Global(3), 16, 3)
    slide(page, "chunk", TOKENS - 1)
    assert page.input_value("#pattern-mechanism") == "gqa"
    assert costs(page)[2:] == expected(4, 2, Causal() if causal else Full())[2:]


KINDS = {kind.__name__: kind for kind in (Block, Causal, Full, Global, Window)}


def test_code_that_is_typed_moves_the_sliders(layer):
    page = layer
    page.fill("#pattern-code", "(Window(5) | Global(2)) & Causal()")
    page.locator("h2", has_text="GQA, window of 5, 2 sinks").wait_for()
    assert [page.input_value(f"#layer-{name}") for name in ("window", "sinks")] == ["4", "2"]
    page.fill("#pattern-code", "Strided(5) & Causal()")
    page.locator("#layer-window").wait_for(state="hidden")
    assert costs(page)[2] == expected(4, 2, Strided(5) & Causal())[2]
    page.fill("#pattern-code", "Strided(5)")
    page.locator("#pattern-canvas[aria-label^='Strided(stride=5):']").wait_for()
    assert not page.is_checked("#pattern-causal")


def test_the_python_of_a_layer_makes_it(layer, tmp_path):
    page = layer
    slide(page, "heads", 3)
    slide(page, "window", 11)
    names: dict[str, object] = {}
    path = str(tmp_path / "own.svg")
    exec(page.inner_text("#pattern-python").replace("pattern.svg", path), names)
    pattern = Window(12) & Causal()
    assert names["spec"] == AttentionSpec(
        d_model=D_MODEL, num_heads=8, num_kv_heads=2, pattern=pattern
    )


def test_a_link_sets_the_sliders(layer):
    page = layer
    slide(page, "heads", 4)
    slide(page, "kv", 4)
    slide(page, "window", 11)
    page.wait_for_timeout(400)
    address, before = page.url, costs(page)
    assert {key: linked(address)[key] for key in ("heads", "kv")} == {"heads": 16, "kv": 1}
    page.goto("about:blank")
    page.goto(address)
    page.locator("h2", has_text="MQA, window of 12").wait_for()
    assert costs(page) == before


def test_a_slider_that_moves_is_not_replaced(layer):
    page = layer
    page.focus("#layer-window")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    page.locator("output", has_text="61 tokens").wait_for()
    assert page.evaluate("document.activeElement.id") == "layer-window"
    boxes = [page.locator(name).bounding_box() for name in ("#pattern-flow", ".drawing")]
    assert boxes[0]["y"] < boxes[1]["y"]


FRAMES = """([name, count]) => new Promise((done) => {
    const slider = document.querySelector(`#layer-${name}`);
    const times = [];
    const move = (time) => {
        times.push(time);
        if (times.length > count) return done(times.slice(1).map((end, n) => end - times[n]));
        slider.value = (Number(slider.value) + 1) % (Number(slider.max) + 1);
        slider.dispatchEvent(new Event("input", {bubbles: true}));
        requestAnimationFrame(move);
    };
    requestAnimationFrame(move);
})"""


@pytest.mark.parametrize("name", ["heads", "kv", "window", "chunk"])
def test_a_moving_slider_keeps_the_frames(layer, name):
    """60 frames a second are 16.7 ms of the page's thread, whatever else the machine does."""
    session = layer.context.new_cdp_session(layer)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    before = busy()
    frames = layer.evaluate(FRAMES, [name, 60])
    work = 1000 * (busy() - before) / len(frames)
    rate = 1000 / statistics.median(frames)
    print(f"{name}: {work:.1f} ms of work a frame, {rate:.0f} frames a second")  # noqa: T201
    assert work < SLOW * 1000 / 60
