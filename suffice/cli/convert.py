"""`suffice convert`: replace the attention of a trained model by a cheaper one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.table import Table
from typer import Option

from suffice.cli.options import (
    AnyModel,
    JsonFlag,
    Quiet,
    TokenizerOption,
    check_at_least,
    check_out,
    folder_next_to,
    open_unpacked,
    text_option,
)
from suffice.cli.terminal import (
    PLAIN,
    format_interval,
    print_json,
    print_next,
    print_text,
    step_by_cells,
)
from suffice.errors import ConfigError
from suffice.utils.grammar import in_ranges

if TYPE_CHECKING:
    from torch import Tensor

    from suffice.convert import Certificate
    from suffice.convert.sources import Source

TOKENS = 1 << 15


def convert(
    source: AnyModel,
    to: Annotated[
        str,
        Option(
            help="New attention: standard, gqa:N, mqa, optimised, efficient, super, latent:R, "
            "input, linear, gla, mla:R, window:W+sinks:N (4 sinks unless given), several joined by "
            "commas; share:N (N neighbouring layers read one cache); the file of a plan; or "
            "keep, which only makes the folder."
        ),
    ],
    calibration: Annotated[
        str | None,
        Option(
            help="Text file, folder or name of a corpus: the training part is fitted to, the "
            "validation part is the test; by default the corpus the model was trained on."
        ),
    ] = None,
    out: Annotated[
        Path | None, Option(help="Folder of the result; SOURCE-TARGET by default.")
    ] = None,
    naive: Annotated[
        bool,
        Option(
            "--naive", help="Average or drop maps instead of fitting them: a baseline to compare."
        ),
    ] = False,
    tokens: Annotated[int, Option(help="Tokens of text to fit to.")] = TOKENS,
    tokenizer: TokenizerOption = None,
    as_json: JsonFlag = False,
    quiet: Quiet = False,
) -> None:
    """Replace the attention of a trained model in closed form, and certify what that changed.

    Where an exact rewrite exists it is used and checked; the rest is fitted to what the model
    computes on the text. The folder is one as `suffice train` writes it, with certificate.json.
    """
    from suffice.convert import convert as convert_model
    from suffice.convert import read_plan, steps_of
    from suffice.convert.folder import check_source, save
    from suffice.models.folder import check_replaceable
    from suffice.utils.progress import show

    check_at_least(1, tokens=tokens)
    out = out or folder_next_to(source, _folder_suffix(to))
    check_out(out, source=source)
    check_replaceable(out)
    if not to.endswith(".json"):
        steps_of(to)  # refuses a wrong target before anything is opened
    target = read_plan(Path(to)) if to.endswith(".json") else to
    model = open_unpacked(source, tokenizer)
    check_source(model)
    texts = _texts(model, calibration, tokens)
    with show(Console(stderr=True), cells=3, quiet=quiet) as progress:
        step = step_by_cells(progress)
        converted = convert_model(model.model, target, naive=naive, step=step, **texts)
    certificate = converted.certificate
    facts = {"converted": {"from": model.kind, "to": to, "kind": certificate.kind}}
    save(out, converted.model, model, certificate, path=source, **facts)
    if as_json:
        print_json(certificate.to_json())
    else:
        _print(certificate, out)
        print_next(*_following(model, certificate.exact, quote(str(out)), calibration, tokenizer))


def _folder_suffix(to: str) -> str:
    target = Path(to).stem if to.endswith(".json") else to
    return re.sub(r"[^a-z0-9]+", "-", target.lower()).strip("-") or "converted"


def _texts(source: Source, name: str | None, tokens: int) -> dict[str, list[Tensor]]:
    from suffice.convert.calibration import calibration_batches
    from suffice.models import LM
    from suffice.text import corpus

    text = name or source.facts.get("corpus")
    if not isinstance(source.model, LM):
        if name is not None:
            raise ConfigError(
                f"--calibration {name}: a {source.kind} model reads no text here; leave it out, "
                "or call suffice.convert.convert with batches of its inputs."
            )
        return {}
    if not isinstance(text, str):
        return {}
    length = source.model.config.length
    fitted, held_out = calibration_batches(
        corpus(text), source.tokenizer, length=length, tokens=tokens
    )
    return {"calibration": fitted, "held_out": held_out}


def _print(certificate: Certificate, out: Path) -> None:
    longest = max(len(word) for layer in certificate.layers for word in layer.target.split(","))
    table = Table(**PLAIN)
    table.add_column("layers", no_wrap=True)
    table.add_column("became", min_width=longest + 1)  # a change of several steps may wrap
    table.add_column("claim")
    for column in (*(() if certificate.exact else ("error",)), "KV/token", "parameters"):
        table.add_column(column, no_wrap=True)
    alike = defaultdict(list)  # layers that changed in the same way are one row
    for layer in certificate.layers:
        sizes = (layer.state_before, layer.state_after, layer.parameters_before)
        name = re.sub(r"\d+", "*", layer.name, count=1)
        key = (name, layer.target, layer.chosen, *sizes, layer.parameters_after)
        alike[key].append(layer)
    for layers in alike.values():
        first = layers[0]
        error = _largest(
            layer.predicted if layer.measured is None else layer.measured for layer in layers
        )
        difference = _largest(layer.difference for layer in layers)
        table.add_row(
            in_ranges([layer.name.removesuffix(".attention") for layer in layers]),
            first.target.replace(",", ", "),
            first.chosen if difference is None else f"exact, within {difference:.0e}",
            *(() if certificate.exact else ("" if error is None else f"{error:.1%}",)),
            _change(first.state_before, first.state_after),
            _change(first.parameters_before, first.parameters_after),
        )
    Console().print(table)
    print_text(_method(certificate))
    if limits := sorted({n for layer in certificate.layers if (n := layer.exact_up_to)}):
        print_text(f"windows change nothing up to {' or '.join(map(str, limits))} tokens")
    if certificate.loss is not None:
        loss = certificate.loss
        change = format_interval(loss.change, loss.low, loss.high, "+.4f")
        print_text(
            f"held-out loss {loss.before:.4f} -> {loss.after:.4f}, change {change} nats per "
            f"token, {loss.tokens:,} tokens in {loss.rows} rows"
        )
    print_text(f"model: {out}")


def _following(
    source: Source, exact: bool, out: str, calibration: str | None, tokenizer: Path | None
) -> list[str]:
    from suffice.models import LM
    from suffice.text import Words

    if not isinstance(source.model, LM):
        reads = isinstance(source.tokenizer, Words) or "preparation" in source.facts
        return [f"suffice predict {out} FILE"] if reads else []
    data = text_option("--data", calibration or "FILE", source.facts)
    words = "" if tokenizer is None else f" --tokenizer {quote(str(tokenizer))}"
    measure = f"suffice evaluate {out}{data}"
    if exact:
        return [measure, f"suffice bench {out}"]
    return [f"suffice heal {out}{data}{words}", measure]


def _change(before: int, after: int) -> str:
    return f"{before:,}" if before == after else f"{before:,} -> {after:,}"


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _method(certificate: Certificate) -> str:
    if certificate.exact:
        return (
            "exact: every layer computes the same function, up to rounding; differences are in "
            "float64"
        )
    if certificate.naive:
        return "approximate, by averaging or dropping maps: nothing was fitted"
    return (
        f"approximate, fitted on {certificate.calibration_tokens:,} tokens; error: the largest of "
        "these layers, as a share of the output"
    )
