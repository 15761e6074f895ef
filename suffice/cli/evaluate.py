"""`suffice evaluate`: measure a trained language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Option

from suffice.cli.options import Checkpoint, Device, JsonFlag, Quiet, corpus_name
from suffice.cli.terminal import PLAIN, Stopped, print_json, print_text, wide_console
from suffice.errors import ConfigError, check_known

if TYPE_CHECKING:
    from suffice.comparison.evaluation import RecallReport

TASKS = ("perplexity", "recall")
CONTROL_SUCCEEDED = 1  # the exit code then
WIDTH = 100  # columns where the output is not a terminal


def evaluate(
    checkpoint: Checkpoint,
    task: Annotated[
        str,
        Option(
            help="perplexity on a text, or recall of repeated random tokens and of passkeys, with "
            "controls that must fail."
        ),
    ] = TASKS[0],
    limit: Annotated[
        int | None,
        Option(help="Use the first windows only (all by default); of recall, rows (32)."),
    ] = None,
    data: Annotated[
        str | None,
        Option(
            help="Text, or name of a corpus; by default the test or validation part of the corpus "
            "the model was trained on."
        ),
    ] = None,
    device: Device = "cpu",
    as_json: JsonFlag = False,
    quiet: Quiet = False,
) -> None:
    """Measure a language model: loss, perplexity and bits per byte of a text, or recall.

    Tasks such as HellaSwag are scored by lm_eval on the same model, see `suffice.hf`. A control of
    recall that succeeds is an alarm, and the exit code is 1.
    """
    check_known("task", task, TASKS)
    if task == "recall" and data is not None:
        raise ConfigError("--data is for perplexity: rows of recall are drawn; leave it out.")
    from suffice.comparison.evaluation import ROWS, measure_recall, perplexity
    from suffice.models import folder
    from suffice.train import resolve_device
    from suffice.utils.progress import show

    lm, tokenizer, facts = folder.load(checkpoint, resolve_device(device))
    with show(Console(stderr=True), quiet=quiet) as progress:
        progress.cell(task)
        if task == "recall":
            ends, rows = (tokenizer.begin, tokenizer.end), ROWS if limit is None else limit
            symbols = [n for n in range(tokenizer.vocabulary_size) if n not in ends]
            options: dict[str, Any] = {"begin": tokenizer.begin, "step": progress.step}
            report = measure_recall(lm.eval(), symbols, rows=rows, **options)
        else:
            text = corpus_name(data, facts, option="--data", model=checkpoint)
            result = perplexity(lm, tokenizer, data=text, limit=limit, step=progress.step)
    if task == "recall":
        _print_recall(report, as_json=as_json)
        return
    if as_json:
        print_json(result.to_json())
        return
    print_text(f"{result.task}: {result.items:,} of {result.of:,} items, {result.source}")
    for score in result.scores:
        error = "" if score.standard_error is None else f" +- {score.standard_error:.4f}"
        print_text(f"  {score.name:<20}{score.value:.4f}{error:<12}  {score.description}")


def _print_recall(report: RecallReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report.to_json())
    else:
        far = "everything" if report.reach is None else f"{report.reach} tokens back"
        print_text(f"recall, {report.rows} rows each; the model can attend to {far}")
        table = Table("question", "back", "accuracy, %", "chance, %", "gain, nats", "", **PLAIN)
        for one in report.recalls:
            right = one.accuracy
            half = "" if right.high is None else f" ±{100 * (right.high - right.mean):.1f}"
            table.add_row(
                one.name,
                f"{one.back}",
                f"{100 * right.mean:.1f}{half}",
                f"{100 * one.chance:.1f}",
                "" if one.gain is None else f"{one.gain.mean:+.2f}",
                one.verdict,
            )
        wide_console(WIDTH).print(table)
    if report.alarms:
        raise Stopped(
            f"ALARM: {len(report.alarms)} controls succeeded, which should be impossible: the "
            "questions can be answered without recall.",
            code=CONTROL_SUCCEEDED,
        )
