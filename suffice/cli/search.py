"""`suffice search`: choose the attention of each layer of a trained model, within a budget."""

from __future__ import annotations

import shlex
from pathlib import Path
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
    corpus_name,
    open_unpacked,
)
from suffice.cli.terminal import (
    PLAIN,
    RULED,
    format_interval,
    print_json,
    print_next,
    print_text,
    resumable,
    step_by_cells,
)
from suffice.errors import ConfigError

if TYPE_CHECKING:
    from suffice.convert.search import Quantity, SearchResult
    from suffice.utils.statistics import Summary

TOKENS = 1 << 15
MAX_LENGTH = 512
STAGES = ("timing", "reading", "fitting", "scoring", "judging", "comparing")
UNITS = {
    "state": ("kB", 1e-3, ",.1f"),
    "parameters": ("", 1.0, ",.0f"),
    "latency": ("us", 1e6, ",.1f"),
    "loss": ("nats", 1.0, ".4f"),
    "divergence": ("nats", 1.0, ".5f"),
}


def search(
    checkpoint: AnyModel,
    budget: Annotated[
        str,
        Option(
            help="Bounds, separated by commas: state<=25% (the KV cache), latency<=0.8x, "
            "parameters<=90%, loss<=1.05x (or absolute: 64kB, 2ms, 10M, 1.9), divergence<=0.01."
        ),
    ],
    calibration: Annotated[
        str | None,
        Option(
            help="Text file, folder or name of a corpus: the training part is fitted to, the "
            "validation part chooses and tests; by default the corpus the model was trained on."
        ),
    ] = None,
    minutes: Annotated[
        float, Option(help="Minutes to score options; then it chooses among those scored.")
    ] = 10.0,
    out: Annotated[
        Path, Option(help="File of the plan; a folder next to it holds all results.")
    ] = Path("plan.json"),
    length: Annotated[
        int | None,
        Option(
            help="Length of text for which costs count, tokens; by default the model's longest "
            f"input, at most {MAX_LENGTH}."
        ),
    ] = None,
    options: Annotated[
        str | None,
        Option(
            help='Options of a layer besides keeping it, such as "mqa; gqa:2,window:64+sinks"; by '
            "default all that are legal."
        ),
    ] = None,
    tokens: Annotated[int, Option(help="Tokens of text to fit to.")] = TOKENS,
    tokenizer: TokenizerOption = None,
    resume: Annotated[
        bool, Option("--resume", help="Resume the search of --out; the budget may differ.")
    ] = False,
    as_json: JsonFlag = False,
    quiet: Quiet = False,
) -> None:
    """Choose the attention of each layer within a budget, and measure the result.

    Every layer is fitted with every legal option and scored alone: how much the model's predictions
    change. Steps are timed on this machine. An integer program chooses; its plan is converted and
    measured as a whole, on other text, with one option for all layers and random plans. `suffice
    convert CHECKPOINT --to plan.json` makes the model.
    """
    from suffice.convert import steps_of
    from suffice.convert.search import SearchTexts, budget_of
    from suffice.convert.search import search as search_plan
    from suffice.convert.search.result import folder_of
    from suffice.convert.search.scoring import run_folder
    from suffice.convert.search.search import check_source
    from suffice.utils.progress import show

    budget_of(budget)
    words = None if options is None else [word.strip() for word in options.split(";")]
    for word in words or ():
        steps_of(word)
    if out.suffix != ".json":
        raise ConfigError(f"--out {out}: a plan is a file that ends in .json.")
    check_at_least(1, tokens=tokens)
    check_at_least(2, length=length)
    source = open_unpacked(checkpoint, tokenizer)
    check_source(source)
    text = corpus_name(calibration, source.facts, option="--calibration", model="the checkpoint")
    texts = SearchTexts.of(source, text, tokens=tokens, length=length)
    with (
        run_folder(folder_of(out)).locked(),
        resumable(out),
        show(Console(stderr=True), cells=len(STAGES), quiet=quiet) as progress,
    ):
        result = search_plan(
            source.model,
            budget,
            texts,
            minutes=minutes,
            words=words,
            work=folder_of(out),
            resume=resume,
            step=step_by_cells(progress, STAGES),
        )
        result.write(out)
    if as_json:
        print_json(result.to_json())
        return
    command = ["suffice", "convert", str(checkpoint), "--to", str(out)]
    for option, value in (("--calibration", calibration), ("--tokenizer", tokenizer)):
        command += [] if value is None else [option, str(value)]
    _print(result, out)
    print_next(shlex.join(command))


def _print(result: SearchResult, out: Path) -> None:
    from suffice.convert.search.result import folder_of

    console = Console()
    for table in (_layers(result), _quantities(result), _combinations(result)):
        console.print(table)
        console.print()
    print_text("\n".join(sentences(result)))
    print_text(f"plan: {out}; all results: {folder_of(out)}")


def sentences(result: SearchResult) -> list[str]:
    """Return sentences about the latency and the alternatives."""
    told = [_speed(result), _additivity(result), _against_uniform(result)]
    if result.scored < result.pairs:
        told.append(
            f"{result.scored} of {result.pairs} pairs of a layer and an option were scored in "
            "time; --resume with more --minutes scores the rest"
        )
    return told


def _layers(result: SearchResult) -> Table:
    table = Table("layer", "becomes", "divergence alone", "KV cache kB", "parameters", **RULED)
    for layer in result.layers:
        table.add_row(
            layer.layer.removesuffix(".attention"),
            layer.words.replace(",", ", "),
            _interval(layer.divergence),
            f"{layer.state / 1e3:,.1f}",
            f"{layer.parameters:,}",
        )
    return table


def _quantities(result: SearchResult) -> Table:
    table = Table(**PLAIN)
    for column in ("", "source", "at most", "predicted", "measured", "bound"):
        table.add_column(column, no_wrap=column != "measured")
    for quantity in result.quantities:
        unit, scale, form = UNITS[quantity.name]
        values = [quantity.source, quantity.bound, quantity.predicted]
        cells = ["" if value is None else f"{value * scale:{form}}" for value in values]
        ends = (None if end is None else end * scale for end in (quantity.low, quantity.high))
        cells.append(format_interval(quantity.measured * scale, *ends, form))
        table.add_row(f"{quantity.name} {unit}".strip(), *cells, _verdict(quantity))
    return table


def _verdict(quantity: Quantity) -> str:
    if quantity.bound is None:
        return ""
    return {True: "met", False: "NOT MET", None: "in noise"}[quantity.met]


def _combinations(result: SearchResult) -> Table:
    rows = {"the plan": result.plan}
    if result.uniform is not None:
        name = f"best of {len(result.of('uniform'))} uniform: {result.uniform.words[0]}"
        rows[name] = result.uniform
    if greedy := sorted(result.of("greedy"), key=lambda mix: mix.divergence.mean):
        rows["layers by loss"] = greedy[0]
    if random := sorted(result.of("random"), key=lambda mix: mix.divergence.mean):
        rows[f"best of {len(random)} random mixes"] = random[0]
        rows["median of them"] = random[len(random) // 2]
    table = Table("on unseen text", "divergence", "loss", "KV cache kB", **RULED)
    for name, mix in rows.items():
        cells = (_interval(mix.divergence), f"{mix.loss.mean:+.4f}", f"{mix.state / 1e3:,.1f}")
        table.add_row(name, *cells)
    return table


def _speed(result: SearchResult) -> str:
    latency = result.quantity("latency")
    low, high = latency.low or latency.measured, latency.high or latency.measured
    word = "as fast as the source within the noise"
    if high < latency.source:
        word = f"{latency.source / latency.measured:.2f}x as fast as the source"
    elif low > latency.source:
        word = f"{latency.measured / latency.source:.2f}x slower than the source"
    ways = ", then ".join(dict.fromkeys((result.source_way, result.way)))
    states = " -> ".join(f"{size / 1e3:,.1f}" for size in result.held)
    return (
        f"a step behind {result.length:,} tokens is {word} (steps: {ways}); KV cache with room "
        f"to grow {states} kB"
    )


def _additivity(result: SearchResult) -> str:
    if result.additive is None:
        return "every layer stays as it is"
    if result.additive:
        return "the layers' divergences add up to the whole's within the noise"
    moved = "one of them is the plan" if result.moved else "none was better"
    return (
        f"the layers' divergences do not add up to the whole's, so {result.weighed} choices near "
        f"it were measured; {moved}"
    )


def _against_uniform(result: SearchResult) -> str:
    gain, best = result.ahead, result.uniform
    if best is None:
        return "no one option for all layers meets the budget"
    if result.words == best.words:
        return "the plan is the best uniform choice"
    word = "not distinguishable from"
    if gain.high is not None and gain.high < 0:
        word = "nearer to the source than"
    elif gain.low is not None and gain.low > 0:
        word = "farther from the source than"
    return (
        f"the plan is {word} the best uniform choice: divergence {_interval(gain, '+')} of "
        "difference, row by row"
    )


def _interval(summary: Summary, sign: str = "") -> str:
    return format_interval(summary.mean, summary.low, summary.high, f"{sign}.5f")
