from __future__ import annotations

import json
from dataclasses import replace

import pytest

from suffice.measure.results import Speed
from suffice.measure.sentence import (
    decision,
    longer,
    notes,
    sentence,
    verdict_record,
)
from suffice.measure.sufficiency import FAILS, UNLEARNED
from suffice.measure.verdict import judge

from .synthetic import from_accuracies, make_cell, make_results

SURE = [0.970, 0.971, 0.969, 0.970, 0.970]
NEAR = [0.968, 0.970, 0.967, 0.968, 0.967]
LOST = [0.900, 0.902, 0.899, 0.900, 0.899]
WILD = [0.995, 0.930, 0.990, 0.940, 0.980]


def say(results, **options) -> str:
    return sentence(judge(results, **options), results)


def test_the_winner_is_named_with_all_its_numbers():
    cells = []
    for name, values, flops in (("standard", SURE, 1000), ("efficient", NEAR, 520)):
        cells += [make_cell(name, 4, s, test_accuracy=v, flops=flops) for s, v in enumerate(values)]
    speeds = [
        Speed(mechanism=n, num_heads=4, latency=(t, t, 9.0), batch_size=1, peak_bytes=1)
        for n, t in (("standard", 1.0), ("efficient", 0.61))
    ]
    # differences -.002 -.001 -.002 -.002 -.003: mean -.002, sd .000707, half width .00088
    assert say(make_results(cells, speeds)) == (
        "efficient (4 heads) suffices: test accuracy 96.8% (sd 0.1, 5 seeds) against standard's "
        "97.0% (sd 0.1, 5 seeds), difference -0.20 points, 95% CI [-0.29, -0.11], margin 1.0; "
        "none of its 5 seeds failed (a failure rate of up to 45% cannot be ruled out); "
        "it needs 0.52x the FLOPs and 0.61x the time."
    )


def test_without_speeds_or_flops_the_parameters_are_reported():
    cells = [
        make_cell(seed=s, test_accuracy=v, flops=0, parameters=40_000) for s, v in enumerate(SURE)
    ]
    cells += [
        make_cell("a", seed=s, test_accuracy=v, flops=0, parameters=20_000)
        for s, v in enumerate(NEAR)
    ]
    text = say(make_results(cells), cost="parameters")
    assert text.endswith("it needs 0.62x the parameters.")


def test_speeds_of_different_rounds_are_not_divided():
    results = from_accuracies({"standard": SURE, "a": NEAR})
    speeds = [
        Speed(mechanism=n, num_heads=1, latency=t, batch_size=1, peak_bytes=1)
        for n, t in (("standard", (1.0, 1.0)), ("a", (0.5,)))
    ]
    text = say(make_results(results.cells, speeds))
    assert text.endswith("it needs 0.90x the FLOPs.")


def test_undecided_names_the_seeds_that_are_missing():
    text = say(from_accuracies({"standard": SURE, "a": WILD}))
    verdict = judge(from_accuracies({"standard": SURE, "a": WILD}))
    more = verdict.winner.more_seeds
    assert text.startswith("undecided: a (1 head) may suffice: test accuracy ")
    assert f"; about {more} more seeds would decide it; it needs" in text
    assert "(sd 3.0, 5 seeds)" in text


def test_no_shared_seed_is_stated():
    cells = [make_cell("standard", 1, 0), make_cell("a", 1, 1, flops=1)]
    text = say(make_results(cells))
    assert text == (
        "undecided: a (1 head) may suffice: test accuracy 97.6% (1 seed), margin 1.0; the baseline "
        "has no seed in common with it at this number of heads; "
        "it needs 0.00x the FLOPs."
    )


def test_the_baseline_stays_with_the_nearest_and_its_distance():
    lower = [v - 0.02 for v in LOST]
    text = say(from_accuracies({"standard": SURE, "a": LOST, "b": lower}))
    assert text.startswith(
        "standard stays: no cheaper mechanism suffices; the nearest, a (1 head), has test "
        "accuracy 90.0% (sd 0.1, 5 seeds) against standard's 97.0% (sd 0.1, 5 seeds), "
        "difference -7.00 points, 97.5% CI [-7.11, -6.89], margin 1.0."
    )


def test_the_baseline_stays_when_nothing_cheaper_was_there():
    text = say(from_accuracies({"standard": SURE}))
    assert text == (
        "standard stays: nothing cheaper by flops was compared; "
        "standard (1 head) has test accuracy 97.0% (sd 0.1, 5 seeds)."
    )


@pytest.mark.parametrize(("sign", "word"), [(1, "better"), (-1, "worse")])
def test_a_difference_inside_the_margin_is_reported(sign, word):
    moved = [v + sign * (0.004 + e) for v, e in zip(SURE, (1e-4, 0, 0, 1e-4, 0), strict=True)]
    results = from_accuracies({"standard": SURE, "a": moved})
    verdict = judge(results)
    assert verdict.outcome == "suffices"
    told = f"a (1 head) is {word} than standard (paired t "
    assert sum(note.startswith(told) for note in notes(verdict, results)) == 1


def test_an_untested_difference_is_reported():
    results = from_accuracies({"standard": [0.97], "a": [0.96]})
    told = "Whether a (1 head) differs from standard was not tested; it takes 3 seeds."
    assert told in notes(judge(results), results)


def test_a_better_baseline_with_other_heads_is_reported():
    results = from_accuracies({"standard@1": LOST, "a@1": LOST, "standard@4": SURE, "a@4": LOST})
    assert (
        "Mechanisms are compared at equal heads: standard (4 heads) has 97.0% (sd 0.1, 5 seeds), "
        "which was not held against a (1 head)."
    ) in notes(judge(results), results)


def test_cheaper_undecided_ones_are_reported():
    results = from_accuracies({"standard": SURE, "a": NEAR, "b": WILD})
    found = notes(judge(results), results)
    assert any(note.startswith("b (1 head) is undecided: about ") for note in found)
    assert not any(note.startswith("a (1 head) is undecided") for note in found)


def test_seeds_without_a_partner_are_reported():
    results = from_accuracies({"standard": SURE, "a": NEAR[:3]})
    assert "a (1 head) and standard share 3 seeds; not in both, so not paired: 3, 4." in notes(
        judge(results), results
    )


def test_failed_seeds_are_counted_and_named():
    results = from_accuracies({"standard": SURE, "a": [*SURE[:2], 0.5, *SURE[3:]], "b": LOST})
    verdict = judge(results)
    assert (verdict.winner.mechanism, verdict.find("b", 1).sufficiency) == ("a", FAILS)
    assert decision(verdict.find("a", 1)) == (
        "undecided: it failed in 1 of 5 seeds and the baseline in 0 of 5, which does not show a "
        "higher rate (p = 0.5)"
    )
    found = notes(verdict, results)
    assert "a (1 head) learned in 4 of 5 seeds (not in 2)." in found
    assert any(note.startswith("A seed has not learned if it is far below") for note in found)
    open_rate = "Where all seeds trained, a failure rate of up to 45% after 5 seeds"
    assert f"{open_rate} cannot be ruled out." in found


def test_an_unknown_floor_is_said():
    results = from_accuracies({"standard": SURE, "a": NEAR})
    said = "Whether anything was learned with 1 head is not known: "
    assert any(note.startswith(said) for note in notes(judge(results), results))
    known = replace(results, majority=0.1)
    assert not any(note.startswith(said) for note in notes(judge(known), known))


def test_a_better_one_than_a_baseline_that_learned_nothing_is_named():
    results = from_accuracies({"standard": [0.1] * 5, "a": SURE}, majority=0.1)
    assert say(results).endswith("standard is not a baseline here; a (1 head) did better.")
    results = from_accuracies({"standard": [0.1] * 5, "a": [0.1] * 5}, majority=0.1)
    assert say(results).endswith("margin 1.0; no verdict can be given against it.")


def test_a_task_that_is_too_easy_is_said_with_what_differs():
    cells = [make_cell("standard", 1, s, test_accuracy=0.996, epochs=4) for s in range(5)]
    cells += [make_cell("a", 1, s, test_accuracy=0.995, epochs=4, flops=600) for s in range(5)]
    results = make_results(cells)
    text = say(results)
    assert text.startswith(
        "too easy to tell: standard (1 head) has test accuracy 99.6% (sd 0.0, 5 seeds), and "
        "misses no more than the margin of 1.0 points; a (1 head) has 99.5% and needs 0.60x "
    )
    assert text.endswith("use a smaller margin or a harder task.")


def test_where_nothing_was_learned_no_note_speaks_of_learning():
    noise = [0.541, 0.545, 0.538, 0.543, 0.540]
    results = from_accuracies({"standard": noise, "a": noise}, majority=0.541)
    longer = [
        replace(make_cell(c.mechanism, seed=c.seed, epochs=3), test_accuracy=c.test_accuracy)
        for c in results.cells
    ]
    results = replace(results, cells=tuple(longer))
    verdict = judge(results)
    assert (verdict.outcome, bool(verdict.improving)) == (UNLEARNED, True)
    text = " ".join(notes(verdict, results))
    assert text.count("train longer") == 1
    assert "Where every seed learned" not in text


def test_what_was_still_improving_is_said_with_the_command_that_trains_longer():
    command = "suffice compare --recipe digits_vit --epochs 3 --out=runs/x --seeds 5 --resume"
    cells = [make_cell("standard", 4, s, epochs=3) for s in range(3)]
    stopped = [replace(make_cell("a", 4, s, epochs=3), stopped_early=True) for s in range(3)]
    results = make_results([*cells, *stopped], command=command)
    assert judge(results).improving == (("standard", 4),)
    assert (
        "Still improving when training ended (the last epoch is the best in most seeds): standard "
        "(4 heads). To train longer: suffice compare --recipe digits_vit --seeds 5 --epochs 6"
    ) in notes(judge(results), results)


def test_the_command_that_trains_longer_trains_the_cells_of_a_resumed_run():
    first = "suffice compare --data a.csv --mechanisms a,c --heads=2 --seeds 2 --margin 2"
    command = f"{first} --out x\nsuffice compare --resume --out x --mechanisms a,b --seeds 3"
    cells = [make_cell(name, h, s, epochs=1) for name in "ab" for h in (4, 2) for s in range(3)]
    results = make_results(cells, command=command, baseline="a")
    shared = "suffice compare --data a.csv"
    assert (
        longer(results, 2)
        == f"{shared} --margin 2 --mechanisms a,b --heads 2,4 --seeds 3 --epochs 2"
    )
    auto = replace(results, command=command.replace("--seeds 2", "--seeds auto"), most_seeds=9)
    told = f"{shared} --seeds auto --margin 2 --mechanisms a,b --heads 2,4 --epochs 2"
    assert longer(auto, 2) == told


def test_a_margin_other_than_that_of_the_first_command_is_said():
    near = {"standard": [0.97, 0.971, 0.969], "a": [0.969, 0.971, 0.968]}
    for command, said in (("", True), (" --margin 3", True), (" --margin=2", False)):
        resumed = f"suffice compare --out x{command}\nsuffice compare --resume --margin 2"
        results = from_accuracies(near, command=resumed, margin=0.02)
        assert ("The margin was" in " ".join(notes(judge(results), results))) is said


@pytest.mark.parametrize(
    ("command", "longer_command"),
    [
        (
            "suffice compare --task mqar --cells 1/2 --epochs=4",
            "suffice compare --task mqar --epochs 2",
        ),
        (
            "suffice compare --data 'my reviews.csv' --out x",
            "suffice compare --data 'my reviews.csv' --epochs 2",
        ),
        (
            "suffice reproduce v2-imdb --run",
            "suffice compare --recipe digits_vit --scale small --mechanisms standard --epochs 2",
        ),
    ],
)
def test_the_command_that_trains_longer_is_a_legal_one(command, longer_command):
    results = make_results([make_cell(epochs=1)], command=command, scale="small")
    assert longer(results, 2) == longer_command


def test_what_is_counted_and_what_a_guess_has_are_reported():
    values = {"standard": SURE, "a": NEAR}
    found = notes(judge(one := from_accuracies(values, answers=8.0, chance=0.125)), one)
    assert found[-2:] == [
        "A blind guess has test accuracy 12.5%.",
        "A row asks for 8 answers; accuracies and losses are over answers.",
    ]
    plain = from_accuracies(values)
    assert not any("asks for" in note for note in notes(judge(plain), plain))


def test_the_record_is_json_with_sentence_and_notes():
    results = from_accuracies({"standard": SURE, "a": NEAR})
    verdict = judge(results)
    record = json.loads(json.dumps(verdict_record(verdict, results), allow_nan=False))
    assert record["sentence"] == sentence(verdict, results)
    assert record["notes"] == notes(verdict, results)
    assert record["outcome"] == "suffices"
    assert record["mechanisms"][0]["difference"]["n"] == 5
    assert record["qualities"]["1"]["mean"] == pytest.approx(0.97, abs=1e-12)
