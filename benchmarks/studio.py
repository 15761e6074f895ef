"""Time until the studio is painted, and until each of its answers is, in a headless Chromium.

The page is served over loopback and opened anew in each round. An answer counts from the event of
an input to the frame that shows the change. Medians are printed; the reach of each is 100 ms.

Run: python -m benchmarks.studio
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.report import print_machine
from suffice_studio import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

REACH = 100.0  # ms
NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

ANSWERED = """([field, value, event, shown]) => new Promise((resolve, reject) => {
  const input = document.querySelector(field);
  const content = () => document.querySelector(shown)?.innerHTML;
  const before = content();
  let started = 0;
  const look = () => {
    if (content() === undefined || content() === before) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - started)));
  };
  const observer = new MutationObserver(look);
  const all = { childList: true, subtree: true, characterData: true, attributes: true };
  observer.observe(document.body, all);
  setTimeout(() => reject(new Error(`${field} changed nothing in ${shown}`)), 10_000);
  started = performance.now();
  if (input.type === "checkbox") input.click();
  else {
    input.value = value;
    input.dispatchEvent(new Event(event, { bubbles: true }));
  }
})"""
"""Changes a field and returns the milliseconds until what it changes has been painted."""

# tab: name of the answer, field, values in turn, event, what is watched
ANSWERS = {
    "calculator": [
        ("calculator: another length", "#length-number", ("8192", "4096"), "input",
         "#calculator-table tbody"),
        ("calculator: another width", "#model-d_model", ("2048", "4096"), "input",
         "#calculator-table tbody"),
    ],
    "patterns": [
        ("patterns: another mechanism", "#pattern-mechanism", ("bigbird", "longformer"), "change",
         "#pattern-parts"),
        ("patterns: causal", "#pattern-causal", ("", ""), "change", "#pattern-counts"),
        ("patterns: code", "#pattern-code", ("Window(9)", "Window(11)"), "input",
         "#pattern-counts"),
        ("patterns: another number of KV heads", "#layer-kv", ("0", "1"), "input",
         "#layer-costs"),
    ],
    "compare": [
        ("compare: another cost", "#compare-cost", ("parameters", "flops"), "change",
         "#comparison"),
        ("compare: another measure", "#compare-curve", ("validation_loss", "validation_accuracy"),
         "change", ".curves"),
    ],
}  # fmt: skip
READY = {
    "calculator": "#calculator-table tbody tr",
    "patterns": "#pattern-counts dd",
    "compare": "#compare-cost",
}


def painted(browser: Browser, url: str) -> float:
    """Return the milliseconds to the first paint with content of a page that was never opened."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(url)
    entry = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    while (time := page.evaluate(entry)) is None:  # the page's policy forbids wait_for_function
        page.wait_for_timeout(10)
    context.close()
    return time


def answered(page: Page, field: str, values: tuple[str, str], event: str, shown: str) -> Callable:
    """Return a function that changes a field to either value in turn, and times the answer."""
    turns = iter(range(10**6))
    return lambda: page.evaluate(ANSWERED, [field, values[next(turns) % 2], event, shown])


def measure(rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each round, by what was measured."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    times: dict[str, list[float]] = {}
    with sync_playwright() as playwright, served() as studio:
        browser = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        times["first paint"] = [painted(browser, studio.url) for _ in range(rounds + 1)][1:]
        for tab, answers in ANSWERS.items():
            page = browser.new_page()
            page.goto(f"{studio.url}#{tab}")
            page.wait_for_selector(READY[tab])
            for name, *how in answers:
                change = answered(page, *how)
                times[name] = [change() for _ in range(rounds + 2)][2:]
            page.close()
        browser.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    print_machine()
    print(f"studio, milliseconds over {rounds} rounds: median (least, most); reach {REACH:.0f}")
    for name, each in measure(rounds).items():
        median = statistics.median(each)
        note = "" if median <= REACH else "  missed"
        print(f"  {name:30} {median:7.1f} ({min(each):.1f}, {max(each):.1f}){note}")


if __name__ == "__main__":
    main()
