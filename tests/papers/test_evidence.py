from __future__ import annotations

import re
from html import escape
from pathlib import Path

import pytest

from suffice.errors import DataError
from suffice.papers import evidence as page_module
from suffice.papers import trained_claims
from suffice.papers.edge import Edge
from suffice.papers.evidence import claims, page, write_page
from suffice.papers.finding import CONFIRMED, NOT_CONFIRMED, NOT_TESTED, Finding
from suffice.papers.results import path_of
from suffice.papers.tables import MECHANISMS
from tests.measure.synthetic import make_cell
from tests.papers.test_edge import EDGE, FOUR
from tests.papers.tiny import kept

# by number, what follows from the counts and the paper's own figures, whatever is published
FIXED = {
    6: NOT_CONFIRMED,
    11: CONFIRMED,
    12: NOT_CONFIRMED,
    13: CONFIRMED,
    14: NOT_CONFIRMED,
    15: NOT_CONFIRMED,
    16: NOT_CONFIRMED,
    17: NOT_CONFIRMED,
    18: NOT_CONFIRMED,
    19: CONFIRMED,
    20: NOT_CONFIRMED,
    21: NOT_CONFIRMED,
    22: NOT_CONFIRMED,
    23: NOT_CONFIRMED,
    24: NOT_CONFIRMED,
    25: NOT_CONFIRMED,
    26: NOT_CONFIRMED,
    27: NOT_CONFIRMED,
    28: CONFIRMED,
    29: CONFIRMED,
    30: CONFIRMED,
    31: CONFIRMED,
    32: CONFIRMED,
    33: CONFIRMED,
    34: CONFIRMED,
    35: NOT_CONFIRMED,
    36: NOT_CONFIRMED,
    37: NOT_TESTED,
}


@pytest.fixture(scope="module")
def written() -> str:
    return page()


def test_the_page_in_the_documents_is_what_the_command_writes(written):
    path = path_of("x").parents[2] / "docs" / "evidence.md"
    assert path.read_text() == written, "run `suffice reproduce evidence --publish`"


def card_of(number, written):
    """The line of a claim."""
    return next(line for line in written.splitlines() if f'id="claim-{number}"' in line)


def test_every_claim_has_a_card_a_check_and_a_verdict(written):
    assert [claim.id for claim in claims()] == list(range(1, 41))
    for claim in claims():
        card = card_of(claim.id, written)
        assert escape(claim.claim) in card
        assert any(f"<b>{v}</b>" in card for v in (CONFIRMED, NOT_CONFIRMED, NOT_TESTED))


def test_errors_of_the_text_stand_apart_from_what_attention_does(written):
    heads = r"^## What (?:attention does|the papers print of themselves)$"
    _, attention, text = re.split(heads, written, flags=re.MULTILINE)
    text, _ = text.split("## What was run")
    for part, about in ((attention, "attention"), (text, "text")):
        numbers = {int(number) for number in re.findall(r'id="claim-(\d+)"', part)}
        assert numbers == {claim.id for claim in claims() if claim.about == about}
        verdicts = (CONFIRMED, NOT_CONFIRMED, NOT_TESTED)
        counts = ", ".join(f"{part.count(f'<b>{name}</b>')} {name}" for name in verdicts)
        assert f"\n{len(numbers)} claims: {counts}.\n" in part
    assert {1, 5, 8} <= {claim.id for claim in claims() if claim.about == "attention"}
    assert {12, 33} <= {claim.id for claim in claims() if claim.about == "text"}  # caption, divisor


@pytest.mark.parametrize("number", FIXED)
def test_what_counts_and_rows_decide(number, written):
    assert card_of(number, written).endswith(f"<b>{FIXED[number]}</b></article>")


def test_the_page_is_written_into_a_checkout_alone(monkeypatch, tmp_path):
    def path(store):
        return tmp_path / "suffice" / "results" / f"{store}.json"

    monkeypatch.setattr(page_module, "path_of", path)
    monkeypatch.setattr(page_module, "page", lambda: "told\n")
    with pytest.raises(DataError, match="docs/evidence.md belongs to a checkout of the source"):
        write_page()
    (tmp_path / "docs").mkdir()
    assert Path(write_page()).read_text() == "told\n"


# what trainings decide


def results(monkeypatch, accuracy, *, seeds=3, scale="paper", heads=(1, 2, 4)):
    """Publish cells of IMDB: by mechanism the test accuracy, a little apart by seed."""
    found = [
        make_cell(name, number, seed, test_accuracy=value + 0.001 * seed, epochs=2)
        for name, value in accuracy.items()
        for number in heads
        for seed in range(seeds)
    ]
    content = kept(found, scale=scale)

    def published(table):
        return content if table.store == "v2-imdb" else None

    monkeypatch.setattr(trained_claims, "published", published)
    monkeypatch.setattr(page_module, "published", published)
    return content


EQUAL = dict.fromkeys(MECHANISMS, 0.78)


def test_a_gain_is_held_against_its_interval(monkeypatch):
    results(monkeypatch, {**EQUAL, "super_attention": 0.78 * 1.02})
    near = trained_claims.gains("test_accuracy", {"v2-imdb": 0.02})
    assert near.verdict == CONFIRMED
    assert near.ours.startswith("relative gain, test accuracy: v2-imdb +2.0% [+2.0%, +2.0%]")
    assert "v2-imdb +1.83% train, +0.93% test" in near.theirs
    assert trained_claims.gains("test_accuracy", {"v2-imdb": 0.03}).verdict == NOT_CONFIRMED
    both = trained_claims.gains("test_accuracy", {"v2-imdb": 0.02, "v2-amazon": 0.02})
    assert both.verdict == NOT_TESTED


def test_the_largest_gain_needs_every_table_to_fail(monkeypatch):
    results(monkeypatch, {**EQUAL, "super_attention": 0.78 * 1.1})
    names = ["v2-imdb", "v2-amazon"]

    def largest(share, tables):
        return trained_claims.gains("test_accuracy", {}, at_least=share, tables=tables).verdict

    assert largest(0.1, names) == CONFIRMED
    assert largest(0.2, names) == NOT_TESTED
    assert largest(0.2, names[:1]) == NOT_CONFIRMED


@pytest.mark.parametrize("changes", [{"seeds": 2}, {"scale": "small"}])
def test_few_seeds_and_small_scales_test_nothing(monkeypatch, changes):
    results(monkeypatch, EQUAL, **changes)
    assert trained_claims.gains("test_accuracy", {"v2-imdb": 0.5}).verdict == NOT_TESTED
    assert trained_claims.flat(["v2-imdb"]).verdict == NOT_TESTED


def test_who_is_first(monkeypatch):
    results(monkeypatch, {**EQUAL, "efficient": 0.8})
    found = trained_claims.best_everywhere(["v2-imdb"], ["test_accuracy"])
    assert found.ours == (
        "first in 0 of 3; v2-imdb, 1 head, test acc: efficient first; v2-imdb, 2 heads, test acc: "
        "efficient first; ..."
    )
    assert found.verdict == NOT_CONFIRMED
    results(monkeypatch, {**EQUAL, "super_attention": 0.8})
    found = trained_claims.best_everywhere(["v2-imdb"], ["test_accuracy"], highest=True)
    assert (found.ours, found.verdict) == ("first in 1 of 1", CONFIRMED)
    found = trained_claims.rank("v2-imdb", "test_accuracy", 4, {"super_attention": 1})
    assert found.ours == "v2-imdb: standard 2, optimised 2, efficient 2, super_attention 1"
    assert found.verdict == CONFIRMED
    results(monkeypatch, {"standard": 0.8})
    assert trained_claims.best_everywhere(["v2-imdb"], ["test_accuracy"]).verdict == NOT_TESTED


def test_rows_of_the_paper_that_say_otherwise_decide():
    found = trained_claims.best_everywhere(["v2-imagenet"], ["test_accuracy"])
    assert found.theirs == "v2-imagenet, 12 heads, test acc: optimised first"
    assert found.verdict == NOT_CONFIRMED


def test_leads_in_points(monkeypatch):
    results(monkeypatch, {**EQUAL, "super_attention": 0.8})
    found = trained_claims.ahead("v2-imdb", "test_accuracy", {"least": 0.49, "standard": 0.72})
    assert found.theirs == "over the next +0.49 points; over standard +0.72 points"
    assert found.ours == "v2-imdb: over the next +2.00 points; over standard +2.00 points"
    assert found.verdict == CONFIRMED


def test_fit_at_the_lowest_validation_loss(monkeypatch):
    content = results(monkeypatch, EQUAL)
    found = trained_claims.flat(["v2-imdb"])
    summary = content.results.cells[0].train_accuracy
    assert f"{100 * summary:.0f}" in found.ours
    assert found.verdict == NOT_CONFIRMED
    results(monkeypatch, dict.fromkeys(MECHANISMS, 0.995))
    assert trained_claims.flat(["v2-imdb"]).verdict in (CONFIRMED, NOT_CONFIRMED)


# what times decide


def test_savings_at_equal_heads(monkeypatch):
    monkeypatch.setattr(trained_claims, "table", lambda name: EDGE)
    monkeypatch.setattr(trained_claims, "published_edge", lambda table: Edge(groups=(FOUR,)))
    monkeypatch.setattr(trained_claims, "wanted", lambda table: [("imdb", 4)])
    found = trained_claims.savings("v2-edge", ["efficient"], least=None, most=0.14)
    assert found.theirs == "3.8% to 14.7% of the time saved at equal heads"
    assert found.ours == "50.0% to 50.0% of the time saved at equal heads (v2-edge)"
    assert found.verdict == CONFIRMED
    assert (
        trained_claims.savings("v2-edge", ["efficient"], least=0.1, most=0.14).verdict == CONFIRMED
    )
    assert (
        trained_claims.savings("v2-edge", ["efficient"], least=0.6, most=0.14).verdict
        == NOT_CONFIRMED
    )
    assert (
        trained_claims.savings("v2-edge", ["efficient"], least=None, most=0.6).verdict
        == NOT_CONFIRMED
    )
    monkeypatch.setattr(trained_claims, "wanted", lambda table: [("imdb", 4), ("imdb", 8)])
    assert (
        trained_claims.savings("v2-edge", ["optimised"], least=0.0, most=0.07).verdict == NOT_TESTED
    )
    monkeypatch.setattr(trained_claims, "published_edge", lambda table: Edge(groups=()))
    assert trained_claims.savings("v2-edge", ["efficient"], least=None, most=0.1).ours == ""


# the list of what was run


def test_the_page_lists_what_it_rests_on(monkeypatch):
    results(monkeypatch, EQUAL)
    monkeypatch.setattr(
        page_module, "published_edge", lambda table: Edge(groups=(FOUR,) * (table.paper == "v2"))
    )
    rows = page_module._runs()
    assert rows[2].startswith("| v2-imdb | paper | 36 | Some CPU @ 2 GHz (2 cores, 2 threads each)")
    assert rows[3].startswith("| v2-edge | paper | 4 times | Some CPU (2 cores, 2 threads each) |")
    finding = Finding(ours="seen", holds=(True,), tables=("v2-imdb", "v1-table3", "v2-edge"))
    assert page_module._with_minutes(finding) == "seen (2.1 minutes)"
    assert page_module._written(12.3) == "12"


def test_nothing_published_is_stated(monkeypatch):
    monkeypatch.setattr(page_module, "published", lambda table: None)
    monkeypatch.setattr(page_module, "published_edge", lambda table: Edge(groups=()))
    assert page_module._runs() == ["Nothing is published yet."]
    finding = Finding(ours="seen", holds=(None,), tables=("v2-imdb", "v2-edge"))
    assert page_module._with_minutes(finding) == "seen"
