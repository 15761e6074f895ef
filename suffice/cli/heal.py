"""`suffice heal`: train a converted model to recover the quality of its teacher."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
    WRONG,
    Stopped,
    format_interval,
    print_json,
    print_next,
    print_text,
    resumable,
)
from suffice.errors import ConfigError, DataError, ShapeError
from suffice.utils.files import RunFolder, changed_settings

if TYPE_CHECKING:
    from suffice.convert.certificate import LossChange
    from suffice.convert.heal import Healing, HealingReport, Texts
    from suffice.convert.sources import Source

SETTINGS, TOKENS = "healing_run.json", "tokens"
STAGES = ("regression", "distillation", "control")
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

        names = {field.name for field in fields(Healing)}
        if unknown := sorted(self.settings.keys() - names):
            raise ConfigError(
                f"--set {unknown[0]}: unknown healing setting; choose from: "
                f"{', '.join(sorted(names - OPTIONS.keys()))}."
            )
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
    from suffice.convert.heal import heal as heal_model
    from suffice.convert.heal import save
    from suffice.utils.progress import show

    out = out or folder_next_to(choices.checkpoint, "healed")
    choices = replace(
        choices,
        teacher=choices.teacher or source_of(choices.checkpoint),
        settings=parse_settings(settings or [], OPTIONS),
    )
    check_out(out, checkpoint=choices.checkpoint, teacher=choices.teacher)
    task = HealingTask.open(choices)
    console = Console(stderr=True)
    with run_folder(out).locked():
        claim(out, choices, resume=resume)
        with (
            resumable(out),
            unclaimed_if_refused(out),
            show(console, cells=3, quiet=quiet) as progress,
        ):
            healed = heal_model(
                task.student.model,
                task.teacher.model,
                task.texts(out, None if quiet else console),
                healing=task.healing,
                seed=choices.seed,
                device=choices.device,
                folder=out,
                resume=resume,
                progress=progress,
            )
            recorded = {
                "text": task.text,
                "lora": choices.lora,
                "change": healed.report.healed.change,
            }
            save(out, healed, task.student.tokenizer, **task.student.facts | {"healed": recorded})
    if as_json:
        print_json(healed.report.to_json())
    else:
        _print(healed.report, out)
        where, facts = quote(str(out)), task.student.facts
        print_next(
            f"suffice evaluate {where}{text_option('--data', task.text, facts)}",
            f"suffice quantise {where}{text_option('--calibration', task.text, facts)}",
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


def run_folder(out: Path) -> RunFolder:
    """Return the folder of a healing and its settings."""
    from suffice.models.folder import CONFIG, WEIGHTS

    return RunFolder(out, SETTINGS, "healing", results=(CONFIG, WEIGHTS, "healing.json"))


def claim(out: Path, choices: HealOptions, *, resume: bool) -> None:
    """Write the options into the folder of a healing, or check that they are the same."""
    run = run_folder(out)
    settings = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in asdict(choices).items()
    }
    if resume and (changes := changed_settings(run.read(), settings)):
        raise ConfigError(
            f"the healing in {out} had other options: {', '.join(changes)}; resume it with the "
            "same, or give another --out."
        )
    run.claim(settings, resume=resume)


@contextlib.contextmanager
def unclaimed_if_refused(out: Path) -> Iterator[None]:
    """Remove the claim of a healing that is refused before a stage has left anything to resume."""
    try:
        yield
    except (ConfigError, DataError, ShapeError) as error:
        if any((out / f"{stage}.safetensors").exists() for stage in STAGES):
            raise
        for path in (out / SETTINGS, *(out / TOKENS).glob("*.bin*")):
            path.unlink(missing_ok=True)
        for folder in (out / TOKENS, out):
            with contextlib.suppress(OSError):  # other files there stay
                folder.rmdir()
        raise Stopped(f"error: {error}", code=WRONG) from error


@dataclass(frozen=True, kw_only=True)
class HealingTask:
    """The two models and the text of a healing."""

    student: Source
    teacher: Source
    healing: Healing
    text: str

    @classmethod
    def open(cls, choices: HealOptions) -> HealingTask:
        """Open the models and check that they belong together."""
        from suffice.convert.folder import source_of

        healing = choices.healing
        student = open_unpacked(choices.checkpoint)
        original = choices.teacher or source_of(choices.checkpoint)
        teacher = open_unpacked(original, choices.tokenizer)
        _check_models(choices, student, teacher)
        facts = student.facts | teacher.facts
        text = corpus_name(choices.data, facts, option="--data", model=choices.checkpoint)
        return cls(student=student, teacher=teacher, healing=healing, text=text)

    def texts(self, out: Path, console: Console | None) -> Texts:
        """Open the tokens of the three texts, written first if they are not there."""
        from suffice.convert.heal import Texts
        from suffice.convert.heal.text import split_corpus
        from suffice.text import corpus

        documents = split_corpus(corpus(self.text, console=console))
        return Texts.write(out / TOKENS, documents, self.student.tokenizer, console)


def _check_models(choices: HealOptions, student: Source, teacher: Source) -> None:
    from suffice.models import LM

    for path, source in ((choices.checkpoint, student), (choices.teacher, teacher)):
        if not isinstance(source.model, LM):
            raise ConfigError(
                f"{path} is a {source.kind} model, and only language models can be healed; train "
                "it further with `suffice compare`, or with suffice.train.fit and your own batches."
            )
    if student.kind != "suffice":
        raise ConfigError(
            f"{choices.checkpoint} is a {student.kind} model; give the folder that `suffice "
            "convert` wrote of it, and this one as --teacher."
        )
    tokenizer = teacher.tokenizer
    if tokenizer is not None and tokenizer.fingerprint != student.tokenizer.fingerprint:
        raise ConfigError(
            f"the tokenizers of {choices.checkpoint} and {choices.teacher} differ; give the model "
            "that it was converted from."
        )
