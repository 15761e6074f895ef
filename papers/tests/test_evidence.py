from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest

from papers.tests.test_edge import EDGE, FOUR
from papers.tests.test_hellaswag import ONE
from papers.tests.tiny import RESULTS, kept
from suffice.errors import DataError
from suffice_papers import evidence as page_module
from suffice_papers import trained_claims
from suffice_papers.edge import Edge
from suffice_papers.evidence import claims, page, write_page
from suffice_papers.finding import (
    CONFIRMED,
    CONTRADICTED,
    NOT_TESTED,
    UNDECIDED,
    ClaimFinding,
)
from suffice_papers.published import path_of
from suffice_papers.tables import MECHANISMS
from tests.comparison.synthetic import make_cell, make_results, make_survey

# by number, what follows from the counts and the paper's own figures, whatever is published
FIXED = {
    6: CONTRADICTED,
    11: CONFIRMED,
    12: CONTRADICTED,
    13: CONFIRMED,
    14: CONTRADICTED,
    15: CONTRADICTED,
    16: CONTRADICTED,
    17: CONTRADICTED,
    18: CONTRADICTED,
    19: CONFIRMED,
    20: CONTRADICTED,
    21: CONTRADICTED,
    22: CONTRADICTED,
    23: CONTRADICTED,
    24: CONTRADICTED,
    25: CONTRADICTED,
    26: CONTRADICTED,
    27: CONTRADICTED,
    28: CONFIRMED,
    29: CONFIRMED,
    30: CONFIRMED,
    31: CONFIRMED,
    32: CONFIRMED,
    33: CONFIRMED,
    34: CONFIRMED,
    35: CONTRADICTED,
    36: CONTRADICTED,
    37: NOT_TESTED,
    46: NOT_TESTED,
    49: CONFIRMED,
    50: NOT_TESTED,
    52: CONTRADICTED,
    53: CONTRADICTED,
    54: CONFIRMED,
    55: CONTRADICTED,
    58: CONFIRMED,
    59: CONFIRMED,
}
VERDICTS = (CONFIRMED, CONTRADICTED, UNDECIDED, NOT_TESTED)


@pytest.fixture(scope="module")
def written() -> str:
    return page()


def test_the_page_in_the_documents_is_what_the_command_writes(written):
    path = path_of("x").parents[3] / "docs" / "evidence.md"
    assert path.read_text() == written, "run `suffice reproduce evidence --publish`"


def card_of(number, written):
    """The line of a claim."""
    return next(line for line in written.splitlines() if f'id="claim-{number}"' in line)


def test_every_claim_has_a_card_a_check_and_a_verdict(written):
    assert sorted(claim.id for claim in claims()) == list(range(1, 61))
    for claim in claims():
        card = card_of(claim.id, written)
        assert escape(claim.claim) in card
        assert any(f"<b>{v}</b>" in card for v in VERDICTS)
        assert ("a test needs" in card) is (f"<b>{NOT_TESTED}</b>" in card)


def test_the_claim_that_all_versions_turn_on_comes_first(written):
    first = re.search(r'id="claim-(\d+)"', written)
    assert first
    assert "on par with Standard" in card_of(int(first[1]), written)


def test_errors_of_the_text_stand_apart_from_what_attention_does(written):
    heads = r"^## What (?:attention does|an article and a chapter say|the papers print .*)$"
    _, attention, others, text = re.split(heads, written, flags=re.MULTILINE)
    text, _ = text.split("## What was run")
    for part, about in ((attention, "attention"), (others, "others"), (text, "text")):
        numbers = {int(number) for number in re.findall(r'id="claim-(\d+)"', part)}
        assert numbers == {claim.id for claim in claims() if claim.about == about}
        counts = ", ".join(f"{part.count(f'<b>{name}</b>')} {name}" for name in VERDICTS)
        assert f"\n{len(numbers)} claims: {counts}.\n" in part
    assert {1, 5, 8} <= {claim.id for claim in claims() if claim.about == "attention"}
    assert {12, 33} <= {claim.id for claim in claims() if claim.about == "text"}  # caption, divisor


@pytest.mark.parametrize("number", FIXED)
def test_what_counts_and_rows_decide(number, written):
    assert card_of(number, written).endswith(f"<b>{FIXED[number]}</b></article>")


def test_the_page_is_written_into_a_checkout_alone(monkeypatch, tmp_path):
    def path(store):
        return tmp_path / RESULTS / f"{store}.json"

    monkeypatch.setattr("suffice_papers.results.path_of", path)
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


def test_a_gain_is_confirmed_by_an_interval_that_excludes_none(monkeypatch):
    results(monkeypatch, {**EQUAL, "super_attention": 0.78 * 1.02})
    near = trained_claims.gains("test_accuracy", {"v2-imdb": 0.02})
    assert near.verdict == CONFIRMED
    assert "v2-imdb +1.83% train, +0.93% test" in near.theirs
    assert trained_claims.gains("test_accuracy", {"v2-imdb": 0.03}).verdict == CONTRADICTED
    both = trained_claims.gains("test_accuracy", {"v2-imdb": 0.02, "v2-amazon": 0.02})
    assert both.verdict == UNDECIDED


def test_the_largest_gain_needs_every_table_to_fail(monkeypatch):
    results(monkeypatch, {**EQUAL, "super_attention": 0.78 * 1.1})
    names = ["v2-imdb", "v2-amazon"]

    def largest(share, tables):
        return trained_claims.gains("test_accuracy", {}, up_to=share, tables=tables).verdict

    assert largest(0.1, names) == CONFIRMED
    assert largest(0.2, names) == UNDECIDED
    assert largest(0.2, names[:1]) == CONTRADICTED


@pytest.mark.parametrize("changes", [{"seeds": 2}, {"scale": "small"}])
def test_few_seeds_and_small_scales_test_nothing(monkeypatch, changes):
    results(monkeypatch, EQUAL, **changes)
    assert trained_claims.gains("test_accuracy", {"v2-imdb": 0.5}).verdict == NOT_TESTED
    assert trained_claims.flat(["v2-imdb"]).verdict == NOT_TESTED


def test_who_is_shown_to_be_first(monkeypatch):
    results(monkeypatch, {**EQUAL, "efficient": 0.8})
    shown = trained_claims.best_everywhere(["v2-imdb"], ["test_accuracy"])
    assert shown.ours == (
        "shown to be first in 0 of 3; v2-imdb, 1 head, test acc: efficient ahead; v2-imdb, "
        "2 heads, test acc: efficient ahead; ..."
    )
    assert shown.verdict == CONTRADICTED
    results(monkeypatch, {**EQUAL, "super_attention": 0.8})
    shown = trained_claims.best_everywhere(["v2-imdb"], ["test_accuracy"], highest=True)
    assert (shown.ours, shown.verdict) == ("shown to be first in 1 of 1", CONFIRMED)
    ranked = trained_claims.rank("v2-imdb", "test_accuracy", 4, {"super_attention": 1})
    assert ranked.ours == "v2-imdb: standard 2, optimised 2, efficient 2, super_attention 1"
    assert ranked.verdict == CONFIRMED
    results(monkeypatch, {"standard": 0.8})
    assert trained_claims.best_everywhere(["v2-imdb"], ["test_accuracy"]).verdict == NOT_TESTED


def test_rows_of_the_paper_that_say_otherwise_decide():
    found = trained_claims.best_everywhere(["v2-imagenet"], ["test_accuracy"])
    assert found.theirs == "v2-imagenet, 12 heads, test acc: optimised first"
    assert found.verdict == CONTRADICTED


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
    assert found.verdict == CONTRADICTED


@pytest.mark.parametrize(
    ("accuracy", "verdict"), [(0.8, CONFIRMED), (0.7, CONTRADICTED), (0.78, CONFIRMED)]
)
def test_parity_is_judged_as_every_comparison_is(monkeypatch, accuracy, verdict):
    results(monkeypatch, {**EQUAL, "efficient": accuracy})
    assert trained_claims.on_par(["efficient"], ["v2-imdb"]).verdict == verdict
    # one table that was not trained leaves the claim open, unless another contradicts it
    also = trained_claims.on_par(["efficient"], ["v2-imdb", "v2-amazon"]).verdict
    assert also == (CONTRADICTED if verdict == CONTRADICTED else UNDECIDED)
    smaller = trained_claims.on_par(["efficient"], [], smaller=["v2-imdb"], needs="a GPU")
    assert smaller.verdict == NOT_TESTED
    assert "v2-imdb (small scale, decides nothing)" in smaller.ours


@pytest.mark.parametrize(("gain", "rows", "noise", "verdict"), [
    (0.02, 400_000, 0.0, CONFIRMED), (-0.02, 400_000, 0.0, CONTRADICTED),
    (0.02, 400, 0.0, UNDECIDED), (0.02, None, 0.02, UNDECIDED), (0.02, None, 0.002, CONFIRMED),
])  # fmt: skip
def test_test_accuracies_are_no_surer_than_seeds_and_rows_allow(
    monkeypatch, gain, rows, noise, verdict
):
    """Seeds that agree: the variance of two shares, of which a tenth no seed removes; else t."""
    cells = [
        make_cell(name, heads, seed, test_accuracy=accuracy, epochs=2)
        for name in ("standard", "super_attention")
        for heads in (1, 4)
        for seed in range(3)
        for step in [gain + noise * (seed - 1)]
        for accuracy in [0.7 + step * (heads == 4) + step * (name == "super_attention")]
    ]
    data = None if rows is None else make_survey(rows)
    content = kept(cells, results=make_results(cells, data=data))
    imdb = replace(trained_claims.table("v2-imdb"), mechanisms=("standard", "super_attention"))
    monkeypatch.setattr(trained_claims, "table", lambda name: imdb)
    monkeypatch.setattr(trained_claims, "published", lambda table: content)
    most, base = 0.7 + 2 * gain, 0.7 + gain
    halves = [4.302653 * noise / math.sqrt(3)] * 2
    if rows is not None:
        variances = [base * (1 - base) + share * (1 - share) for share in (0.7, most)]
        halves = [1.959964 * math.sqrt((0.9 / 3 + 0.1) * variance / rows) for variance in variances]
    heads = trained_claims.more_heads(["v2-imdb"])
    ends = [f"{100 * (gain + sign * halves[0]):+.2f}" for sign in (-1, 1)]
    assert f"standard, 4 for 1: {100 * gain:+.2f} points [{', '.join(ends)}]" in heads.ours
    assert heads.verdict == verdict
    ends = [f"{100 * (gain + sign * halves[1]) / base:+.1f}%" for sign in (-1, 1)]
    stated = trained_claims.gains("test_accuracy", {"v2-imdb": 0.02})
    assert f"v2-imdb {100 * gain / base:+.1f}% [{', '.join(ends)}]" in stated.ours
    best = trained_claims.best_everywhere(["v2-imdb"], ["test_accuracy"], highest=True)
    assert best.verdict == verdict


def test_scores_of_models_that_guess_are_told_from_others(monkeypatch):
    monkeypatch.setattr(trained_claims, "published_scores", lambda: (
        replace(ONE, scores={"acc": 0.31}, errors={"acc": 0.025}),
        replace(ONE, mechanism="standard", scores={"acc": 0.27}, errors={"acc": 0.025}),
    ))  # fmt: skip
    found = trained_claims.hellaswag("9 billion tokens")
    assert "efficient 31.0% ± 4.9 (100 steps, validation loss 7.25 nats); standard" in found.ours
    assert "; 1 of 2 shown to be above chance, 25%" in found.ours


def test_epochs_by_seed(monkeypatch):
    results(monkeypatch, EQUAL)
    same = trained_claims.trains_faster(["efficient"], ["v2-imdb", "v2-amazon"])
    counted = "shown to be faster in 0 of 3 that were trained, slower in"  # the other was not
    assert (same.verdict, same.ours[: len(counted)]) == (UNDECIDED, counted)


def test_names_of_results_say_the_size_that_was_trained():
    """A name with a number of parameters is that of the models in the file."""
    for path in path_of("x").parent.glob("*.json"):
        size = re.search(r"^(?!atlas).*-([\d.]+)([mk])$", path.stem)  # the atlas has a column
        content = json.loads(path.read_text())
        if size is None or "results" not in content:
            continue
        stated = float(size[1]) * {"k": 1e3, "m": 1e6}[size[2]]
        (standard, *_) = [c for c in content["results"]["cells"] if c["mechanism"] == "standard"]
        assert standard["parameters_model"] == pytest.approx(stated, rel=0.05), path.name


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
        == CONTRADICTED
    )
    assert (
        trained_claims.savings("v2-edge", ["efficient"], least=None, most=0.6).verdict
        == CONTRADICTED
    )
    monkeypatch.setattr(trained_claims, "wanted", lambda table: [("imdb", 4), ("imdb", 8)])
    assert (
        trained_claims.savings("v2-edge", ["optimised"], least=0.0, most=0.07).verdict == UNDECIDED
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
    finding = ClaimFinding(ours="seen", holds=(True,), tables=("v2-imdb", "v1-table3", "v2-edge"))
    assert page_module._with_minutes(finding) == "seen (2.1 minutes)"
    assert page_module.minutes_text(12.3) == "12"


def test_nothing_published_is_stated(monkeypatch):
    monkeypatch.setattr(page_module, "published", lambda table: None)
    monkeypatch.setattr(page_module, "published_edge", lambda table: Edge(groups=()))
    assert page_module._runs() == ["Nothing is published yet."]
    finding = ClaimFinding(ours="seen", holds=(None,), tables=("v2-imdb", "v2-edge"))
    assert page_module._with_minutes(finding) == "seen"
