"""`suffice heal`: train a converted model back towards what it was."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from suffice.cli.options import DEVICE, written
from suffice.cli.terminal import WRONG, Stopped, again, telling
from suffice.convert.sources import Source, open_source
from suffice.errors import CheckpointError, ConfigError, DataError, ShapeError
from suffice.files import replacing
from suffice.heal import Healed, Healing, Texts, save
from suffice.heal import heal as heal_model
from suffice.heal.text import split_corpus
from suffice.models import LM
from suffice.text import corpus
from suffice.train import Progress

if TYPE_CHECKING:
    from rich.console import Console

    from suffice.convert.certificate import LossChange
    from suffice.heal import HealingReport, Stage


def heal(
    checkpoint: Annotated[Path, typer.Argument(help="Folder that `suffice convert` wrote.")],
    teacher: Annotated[
        Path | None,
        typer.Option(help="What it was converted from: anything `suffice convert` reads."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Text, a folder or a corpus' name: the training part is learned; half of the "
            "validation part chooses the weights, the other half judges. The corpus it was trained "
            "on by default."
        ),
    ] = None,
    lora: Annotated[
        bool,
        typer.Option(
            "--lora", help="Learn low-rank adapters in place of all weights; merged at the end."
        ),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Of training; 10 unless --steps is given. The control makes as many steps."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Of training, in place of minutes.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Of the healing: regression, regression_rate, learning_rate, kl, "
            "batch_size, length, warmup, evaluate_every, evaluation_batches, rank, alpha; "
            "repeatable.",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Of the teacher, where it has none beside it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of rows, dropout and adapters.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = DEVICE,
    out: Annotated[
        Path | None, typer.Option(help="Folder of what comes out; CHECKPOINT-healed by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the healing in --out, in the same words.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train a converted model back towards what it was, and say what that was worth.

    First the converted layers learn the outputs of the teacher's, then the whole model its answers
    and the text. The report has the same budget spent on the unconverted model beside it. The
    folder is one as `suffice train` writes it, with healing.json.
    """
    from suffice.train import show

    out = out or checkpoint.with_name(f"{checkpoint.name}-healed")
    for told, path in (("checkpoint", checkpoint), ("teacher", teacher)):
        if path is not None and out.resolve() == path.resolve():
            raise ConfigError(f"--out {out} is the {told} itself, which would be lost.")
    asked = Asked(
        checkpoint=str(checkpoint),
        teacher=None if teacher is None else str(teacher),
        data=data,
        tokenizer=None if tokenizer is None else str(tokenizer),
        lora=lora,
        minutes=minutes,
        steps=steps,
        settings=read_settings(settings or []),
        seed=seed,
        device=device,
    )
    patient = Patient.open(asked)
    claim(out, asked, resume=resume)
    console = Console(stderr=True)
    with (
        telling(again(out), out),
        unclaiming(out),
        show(console, cells=3, quiet=quiet) as progress,
    ):
        texts = patient.texts(out, None if quiet else console)
        healed = patient.heal(out, texts, resume=resume, progress=progress)
        patient.save(out, healed)
    if as_json:
        sys.stdout.write(json.dumps(healed.report.to_json(), indent=1, allow_nan=False) + "\n")
        return
    _print(healed.report, out)


def _print(report: HealingReport, out: Path) -> None:
    console = Console()
    columns = ("model", "loss", "against the teacher", "steps", "tokens", "minutes")
    table = Table(*columns, box=None, pad_edge=False)
    table.add_row("teacher", f"{report.converted.before:.4f}")
    table.add_row("converted", *_change(report.converted))
    changes = {"regressed": report.regressed, "distilled": report.healed}
    changes["control"] = report.control
    given = {name: change for name, change in changes.items() if change is not None}
    for (name, change), stage in zip(given.items(), report.stages, strict=True):
        table.add_row(name, *_change(change), *_budget(stage))
    console.print(table)
    judged = report.healed
    told = [
        f"healed against converted {_interval(report.gained)}, against the control "
        f"{_interval(report.against_control)} nats per token; 95% intervals, paired over "
        f"{judged.rows} rows of held-out text, {judged.tokens:,} tokens",
        "control: the unconverted model, as many steps on the same rows, the same optimiser, "
        "cross-entropy alone",
    ]
    kept = [stage.name for stage in report.stages if not stage.best_step]
    if kept:
        told.append(f"no better on the validation text, so left out: {', '.join(kept)}")
    told.append(f"model: {out}")
    console.print("\n".join(told), markup=False, highlight=False, soft_wrap=True)


def _change(change: LossChange) -> tuple[str, str]:
    return f"{change.after:.4f}", _interval(change)


def _interval(change: LossChange) -> str:
    ends = "" if change.low is None else f" ({change.low:+.4f} to {change.high:+.4f})"
    return f"{change.change:+.4f}{ends}"


def _budget(stage: Stage) -> tuple[str, ...]:
    return f"{stage.steps:,}", f"{stage.tokens:,}", f"{stage.minutes:.1f}"


FILE, TOKENS = "healing_run.json", "tokens"
STAGES = ("regression", "distillation", "control")
OWN = {"minutes": "--minutes", "steps": "--steps", "lora": "--lora"}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a command line says about a healing; None where it says nothing.

    Args:
        checkpoint: folder of the student.
        teacher: path of what it was.
        data: name or path of a corpus.
        tokenizer: of the teacher, where it has none beside it.
        lora: whether adapters learn.
        minutes: of training.
        steps: of training.
        settings: others of the healing, by name.
        seed: of everything that is drawn.
        device: "cpu" or "cuda".
    """

    checkpoint: str
    teacher: str | None
    data: str | None
    tokenizer: str | None
    lora: bool
    minutes: float | None
    steps: int | None
    settings: dict[str, Any]
    seed: int
    device: str

    @property
    def healing(self) -> Healing:
        """The settings.

        Raises:
            ConfigError: if one is unknown or not legal.
        """
        names = {one.name for one in fields(Healing)}
        if strange := sorted(self.settings.keys() - names):
            raise ConfigError(
                f"--set {strange[0]}: a healing has no such setting; legal: "
                f"{', '.join(sorted(names - OWN.keys()))}."
            )
        given = {**self.settings, "lora": self.lora, "steps": self.steps}
        if self.minutes is not None or self.steps is not None:
            given["minutes"] = self.minutes
        return Healing(**given)


def read_settings(words: list[str]) -> dict[str, Any]:
    """Return the settings that words such as "kl=0.9" give."""
    return written(words, OWN)


def claim(out: Path, asked: Asked, *, resume: bool) -> None:
    """Make the folder of a healing and write down what was asked, or see that it is the same.

    Raises:
        CheckpointError: if the folder holds a healing that is not resumed, none that could be, or
            cannot be written.
        ConfigError: if a resumed healing was asked for in other words.
    """
    path = out / FILE
    if resume:
        _compare(path, asked)
        return
    if path.exists():
        raise CheckpointError(
            f"{out} holds a healing already; go on with it by --resume, or give another --out."
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(vars(asked), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path} ({error.strerror or error}); give a folder that can be written."
        ) from error


@contextlib.contextmanager
def unclaiming(out: Path) -> Iterator[None]:
    """Take back a claim where the block is refused before a stage has left anything to resume.

    Raises:
        Stopped: with the refusal.
    """
    try:
        yield
    except (ConfigError, DataError, ShapeError) as error:
        if any((out / f"{name}.safetensors").exists() for name in STAGES):
            raise
        for path in (out / FILE, *(out / TOKENS).glob("*.bin*")):
            path.unlink(missing_ok=True)
        for folder in (out / TOKENS, out):
            with contextlib.suppress(OSError):  # what else lies there stays
                folder.rmdir()
        raise Stopped(f"error: {error}", code=WRONG) from error


def _compare(path: Path, asked: Asked) -> None:
    """Refuse to go on with a healing in other words than it was begun with."""
    try:
        kept = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"there is no healing in {path.parent} to resume ({error.strerror}); start it without "
            "--resume."
        ) from error
    except ValueError:
        kept = None
    if not isinstance(kept, dict) or kept.keys() != vars(asked).keys():
        raise CheckpointError(f"{path} is damaged; start the healing anew in another folder.")
    for name, value in vars(asked).items():
        if kept[name] != value:
            raise ConfigError(
                f"the healing in {path.parent} was begun with {name} {kept[name]!r}, not "
                f"{value!r}; resume it with the same words."
            )


@dataclass(frozen=True, kw_only=True)
class Patient:
    """The two models and what they read.

    Args:
        asked: for what.
        student: a folder of ours.
        teacher: what it was.
        healing: the settings.
        text: name or path of the corpus.
    """

    asked: Asked
    student: Source
    teacher: Source
    healing: Healing
    text: str

    @classmethod
    def open(cls, asked: Asked) -> Patient:
        """Open the models and see that they belong together.

        Raises:
            CheckpointError: if a model cannot be read.
            ConfigError: if something does not fit or is absent.
        """
        if asked.teacher is None:
            raise ConfigError(
                "--teacher: name the model that the checkpoint was converted from; it is what the "
                "healing leads back to."
            )
        healing = asked.healing
        student = open_source(asked.checkpoint)
        teacher = open_source(asked.teacher, tokenizer=asked.tokenizer)
        _check(asked, student, teacher)
        facts = student.facts | teacher.facts
        text = asked.data or facts.get("corpus")
        if not isinstance(text, str):
            raise ConfigError(
                f"{asked.checkpoint} names no corpus; name a text by --data, best one like that "
                "which the teacher was trained on."
            )
        return cls(asked=asked, student=student, teacher=teacher, healing=healing, text=text)

    def texts(self, out: Path, console: Console | None) -> Texts:
        """Write the tokens of the three texts, unless they are there, and open them."""
        documents = split_corpus(corpus(self.text, console=console))
        return Texts.write(out / TOKENS, documents, self.student.tokenizer, console)

    def heal(self, out: Path, texts: Texts, *, resume: bool, progress: Progress) -> Healed:
        """Heal, from the checkpoints that are there if that is asked for.

        Raises:
            Interrupted: on Ctrl-C.
        """
        return heal_model(
            self.student.model,
            self.teacher.model,
            texts,
            healing=self.healing,
            seed=self.asked.seed,
            device=self.asked.device,
            folder=out,
            resume=resume,
            progress=progress,
        )

    def save(self, out: Path, healed: Healed) -> None:
        """Write the healed model and its report."""
        told = {"text": self.text, "lora": self.healing.lora}
        told["change"] = healed.report.healed.change
        facts = self.student.facts | {"healed": told}
        save(out, healed, self.student.tokenizer, **facts)


def _check(asked: Asked, student: Source, teacher: Source) -> None:
    """Refuse a student that is no folder of ours, and a teacher of other tokens."""
    for path, one in ((asked.checkpoint, student), (asked.teacher, teacher)):
        if not isinstance(one.model, LM):
            raise ConfigError(
                f"{path} is a {one.kind} model, and only language models are healed; train it on "
                "by `suffice compare`, or by suffice.train.fit with batches of its inputs."
            )
    if student.kind != "suffice":
        raise ConfigError(
            f"{asked.checkpoint} is a {student.kind} model; give the folder that `suffice convert` "
            "wrote of it, and this one as --teacher."
        )
    theirs = teacher.tokenizer
    if theirs is not None and theirs.fingerprint != student.tokenizer.fingerprint:
        raise ConfigError(
            f"the tokenizers of {asked.checkpoint} and {asked.teacher} differ; give the model that "
            "it was converted from."
        )
