"""`suffice heal`: train a converted model to recover the quality of its teacher."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from suffice.cli.options import (
    DEVICE,
    Device,
    JsonFlag,
    Quiet,
    TokenizerOption,
    check_out,
    corpus_name,
    existing,
    folder_next_to,
    open_unpacked,
    options_from_fields,
    parse_settings,
    set_option,
    text_option,
)
from suffice.cli.terminal import (
    PLAIN,
    format_interval,
    print_json,
    print_next,
    print_text,
    resumable,
)
from suffice.errors import check_known

if TYPE_CHECKING:
    from suffice.convert.certificate import LossChange
    from suffice.convert.heal import Healing, HealingReport

OPTIONS = {"minutes": "--minutes", "steps": "--steps", "lora": "--lora"}


@dataclass(frozen=True, kw_only=True)
class HealOptions:
    """The options of a healing; None where one is not given."""

    checkpoint: Annotated[
        Path, Argument(callback=existing, help="Folder that `suffice convert` wrote.")
    ]
    teacher: Annotated[
        Path | None,
        Option(help="Model it was converted from; by default the one its certificate.json names."),
    ] = None
    data: Annotated[
        str | None,
        Option(
            help="Text file, folder or name of a corpus. The training part is learned from; half "
            "of the validation part chooses the weights, the other half is the test. By default "
            "the corpus the model was trained on."
        ),
    ] = None
    lora: Annotated[
        bool,
        Option("--lora", help="Train low-rank adapters instead of all weights; merged at the end."),
    ] = False
    minutes: Annotated[
        float | None,
        Option(
            help="Minutes to train; 10 unless --steps is given. The control makes the same steps."
        ),
    ] = None
    steps: Annotated[int | None, Option(help="Steps to train, instead of minutes.")] = None
    tokenizer: TokenizerOption = None
    seed: Annotated[int, Option(help="Seed of batches, dropout and adapters.")] = 0
    device: Device = DEVICE
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def healing(self) -> Healing:
        """The settings of the healing."""
        from suffice.convert.heal import Healing

        legal = {each.name for each in fields(Healing)} - OPTIONS.keys()
        for name in self.settings:
            check_known("healing setting", name, legal)
        settings = {**self.settings, "lora": self.lora, "steps": self.steps}
        if self.minutes is not None or self.steps is not None:
            settings["minutes"] = self.minutes
        return Healing(**settings)


@options_from_fields
def heal(
    choices: HealOptions,
    settings: Annotated[
        list[str] | None,
        set_option(
            "Setting of the healing: regression, regression_rate, learning_rate, kl, "
            "batch_size, length, warmup, evaluate_every, evaluation_batches, rank, alpha; "
            "repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None, Option(help="Folder of the result; CHECKPOINT-healed by default.")
    ] = None,
    resume: Annotated[
        bool, Option("--resume", help="Resume the healing in --out with the same options.")
    ] = False,
    as_json: JsonFlag = False,
    quiet: Quiet = False,
) -> None:
    """Train a converted model to recover the quality of its teacher, and measure the gain.

    First the converted layers learn the outputs of the teacher's layers, then the whole model
    learns the teacher's predictions and the text. The report compares with a control: the same
    training of the unconverted model. The folder is one as `suffice train` writes it, with
    healing.json.
    """
    from suffice.convert.folder import source_of
    from suffice.convert.heal import Texts, save
    from suffice.convert.heal import heal as heal_model
    from suffice.convert.heal.run import (
        TOKENS,
        check_sources,
        claim,
        run_folder,
        unclaimed_if_refused,
    )
    from suffice.convert.heal.text import split_corpus
    from suffice.text import corpus
    from suffice.utils.progress import show

    out = out or folder_next_to(choices.checkpoint, "healed")
    choices = replace(
        choices,
        teacher=choices.teacher or source_of(choices.checkpoint),
        settings=parse_settings(settings or [], OPTIONS),
    )
    check_out(out, checkpoint=choices.checkpoint, teacher=choices.teacher)
    healing, console = choices.healing, Console(stderr=True)
    student = open_unpacked(choices.checkpoint)
    teacher = open_unpacked(choices.teacher, choices.tokenizer)
    check_sources(choices.checkpoint, student, choices.teacher, teacher)
    facts = student.facts | teacher.facts
    text = corpus_name(choices.data, facts, option="--data", model=choices.checkpoint)
    with run_folder(out).locked():
        claim(out, asdict(choices), resume=resume)
        with (
            resumable(out),
            unclaimed_if_refused(out),
            show(console, cells=3, quiet=quiet) as progress,
        ):
            shown = None if quiet else console
            documents = split_corpus(corpus(text, console=shown))
            healed = heal_model(
                student.model,
                teacher.model,
                Texts.write(out / TOKENS, documents, student.tokenizer, shown),
                healing=healing,
                seed=choices.seed,
                device=choices.device,
                folder=out,
                resume=resume,
                progress=progress,
            )
            change = healed.report.healed.change
            recorded = {"text": text, "lora": choices.lora, "change": change}
            save(out, healed, student.tokenizer, **student.facts | {"healed": recorded})
    if as_json:
        print_json(healed.report.to_json())
        return
    _print(healed.report, out)
    where = quote(str(out))
    print_next(
        f"suffice evaluate {where}{text_option('--data', text, student.facts)}",
        f"suffice quantise {where}{text_option('--calibration', text, student.facts)}",
    )


def _print(report: HealingReport, out: Path) -> None:
    columns = ("model", "loss", "against the teacher", "steps", "tokens", "minutes")
    table = Table(*columns, **PLAIN)
    table.add_row("teacher", f"{report.converted.before:.4f}")
    table.add_row("converted", f"{report.converted.after:.4f}", _interval(report.converted))
    rows = {"regressed": report.regressed, "distilled": report.healed, "control": report.control}
    trained = {name: change for name, change in rows.items() if change is not None}
    for (name, change), stage in zip(trained.items(), report.stages, strict=True):
        budget = f"{stage.steps:,}", f"{stage.tokens:,}", f"{stage.minutes:.1f}"
        table.add_row(name, f"{change.after:.4f}", _interval(change), *budget)
    Console().print(table)
    print_text(
        f"healed against converted {_interval(report.gained)}, against the control "
        f"{_interval(report.against_control)} nats per token; 95% intervals, paired over "
        f"{report.healed.rows} rows of held-out text, {report.healed.tokens:,} tokens"
    )
    print_text(
        "control: the unconverted model, the same steps on the same rows, the same optimiser, "
        "cross-entropy alone"
    )
    useless = [stage.name for stage in report.stages if not stage.best_step]
    if useless:
        print_text(f"no better on the validation text, so left out: {', '.join(useless)}")
    print_text(f"model: {out}")


def _interval(change: LossChange) -> str:
    return format_interval(change.change, change.low, change.high, "+.4f")
