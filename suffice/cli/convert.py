"""`suffice convert`: a trained model with cheaper attention."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from suffice.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from suffice.convert import Certificate, LayerCertificate
    from suffice.convert.sources import Source

TOKENS = 1 << 15


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="Folder of suffice; folder with config.json and safetensors of transformers; or "
            "a .bin of llama2.c."
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            help="standard, gqa:N, mqa, optimised, efficient, super, latent:R, input, "
            "window:W+sinks, several joined by commas, or the file of a plan."
        ),
    ],
    calibration: Annotated[
        str | None,
        typer.Option(
            help="Text, a folder or a corpus' name: the training part is learnt from, the "
            "validation part judges; the corpus it was trained on by default."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of what comes out; SOURCE-TARGET by default.")
    ] = None,
    naive: Annotated[
        bool, typer.Option("--naive", help="Means and left-out maps instead: the yardstick.")
    ] = False,
    tokens: Annotated[int, typer.Option(help="Of the text, to learn from.")] = TOKENS,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Of the source, where it has none beside it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificate as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Give a trained model cheaper attention in closed form, and certify what that changed.

    What can be had exactly is rewritten and proven; everything else is fitted to what the model
    reads of the text. The folder is one as `suffice train` writes it, with certificate.json.
    """
    from suffice.cli.terminal import as_cells
    from suffice.convert import convert as convert_model
    from suffice.convert.folder import check_source, save
    from suffice.convert.sources import open_source
    from suffice.train import show

    if tokens < 1:
        raise ConfigError(f"--tokens {tokens}: give at least 1.")
    out = out or source.with_name(f"{source.stem or source.name}-{_name(to)}")
    if out.resolve() == source.resolve():
        raise ConfigError(f"--out {out} is the source itself, which would be lost; give another.")
    target = _target(to)
    opened = open_source(source, tokenizer=tokenizer)
    check_source(opened)
    texts = _texts(opened, calibration, tokens)
    with show(Console(stderr=True), cells=3, quiet=quiet) as progress:
        found = convert_model(opened.model, target, naive=naive, step=as_cells(progress), **texts)
    one = found.certificate
    facts = {"converted": {"from": opened.kind, "to": to, "kind": one.kind}}
    save(out, found.model, opened, one, **facts)
    if as_json:
        sys.stdout.write(json.dumps(one.to_json(), indent=1, allow_nan=False) + "\n")
        return
    _print(one, out)


def _name(to: str) -> str:
    """Return a target as part of a folder's name."""
    plain = Path(to).stem if to.endswith(".json") else to
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-") or "converted"


def _target(to: str) -> Any:
    from suffice.convert import read_plan, steps_of

    if to.endswith(".json"):
        return read_plan(Path(to))
    steps_of(to)  # what is wrong with it is told before anything is opened
    return to


def _texts(source: Source, named: str | None, tokens: int) -> dict[str, list[Tensor]]:
    """Return the batches that are learnt from and those that judge."""
    from suffice.convert.calibration import calibration_batches
    from suffice.models import LM
    from suffice.text import corpus

    text = named or source.facts.get("corpus")
    if not isinstance(source.model, LM):
        if named is not None:
            raise ConfigError(
                f"--calibration {named}: a {source.kind} model reads no text here; leave it out, "
                "or call suffice.convert.convert with batches of its inputs."
            )
        return {}
    if not isinstance(text, str):
        return {}
    length = source.model.config.length
    learnt, held = calibration_batches(corpus(text), source.tokenizer, length=length, tokens=tokens)
    return {"calibration": learnt, "held_out": held}


def _print(one: Certificate, out: Path) -> None:
    console = Console()
    errors = () if one.exact else ("predicted", "measured")
    columns = ("layer", "became", "claim", *errors, "state/token", "parameters")
    table = Table(*columns, box=None, pad_edge=False)
    for layer in one.layers:
        shares = () if one.exact else (_share(layer.predicted), _share(layer.measured))
        table.add_row(
            layer.name.removesuffix(".attention"),
            layer.target.replace(",", ", "),
            _claim(layer),
            *shares,
            _change(layer.state_before, layer.state_after),
            _change(layer.parameters_before, layer.parameters_after),
        )
    console.print(table)
    told = [_kind(one)]
    if one.loss is not None:
        loss = one.loss
        interval = "" if loss.low is None else f" (95%: {loss.low:+.4f} to {loss.high:+.4f})"
        told.append(
            f"held-out loss {loss.before:.4f} -> {loss.after:.4f}, change {loss.change:+.4f}"
            f"{interval} nats per token, {loss.tokens:,} tokens in {loss.rows} rows"
        )
    told.append(f"model: {out}")
    console.print("\n".join(told), markup=False, highlight=False, soft_wrap=True)


def _change(before: int, after: int) -> str:
    return f"{before:,}" if before == after else f"{before:,} -> {after:,}"


def _claim(layer: LayerCertificate) -> str:
    if layer.exact:
        return f"exact, within {layer.difference:.0e}"
    far = "" if layer.exact_up_to is None else f", exact up to {layer.exact_up_to} tokens"
    return f"{layer.chosen}{far}"


def _share(error: float | None) -> str:
    return "" if error is None else f"{error:.1%}"


def _kind(one: Certificate) -> str:
    if one.exact:
        return "exact: every layer computes what it did, rounding apart; differences are in float64"
    if one.naive:
        return "approximate, by the usual starts: nothing was fitted"
    return (
        f"approximate, fitted on {one.calibration_tokens:,} tokens; errors are shares of each "
        "layer's output"
    )
