"""`suffice export`: a model as files that other programs run."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from rich.console import Console
from typer import Option

from suffice.cli.options import AnyModel, JsonFlag, Quiet, TokenizerOption, beside, check_out
from suffice.cli.terminal import print_json, print_next, print_text


def export(
    checkpoint: AnyModel,
    form: Annotated[
        str,
        Option(
            "--format",
            help="hf: for transformers; onnx: for ONNX Runtime; torch: for torch.export.load.",
        ),
    ],
    out: Annotated[
        Path | None, Option(help="Folder of the export; CHECKPOINT-FORMAT by default.")
    ] = None,
    tokenizer: TokenizerOption = None,
    as_json: JsonFlag = False,
    quiet: Quiet = False,
) -> None:
    """Write a model for other programs, check it against the model, and list it in manifest.json.

    An hf export loads in transformers without this library; it is exact. onnx and torch graphs take
    tokens, valid and a state as flat inputs, for any batch, chunk and past, and return logits and
    the state. `suffice run` writes text with an onnx or hf export. Nothing in the folder is
    pickled, and no path of this machine is in it. It appears complete or not at all.
    """
    from suffice.export import export as export_model

    out = out or beside(checkpoint, form)
    check_out(out, checkpoint=checkpoint)
    with Console(stderr=True, quiet=quiet).status("") as status:
        manifest = export_model(checkpoint, form, out, tokenizer=tokenizer, step=status.update)
    if as_json:
        print_json(manifest)
    else:
        _print(manifest, out)


def _print(manifest: dict[str, Any], out: Path) -> None:
    kind = manifest.get("architecture") or manifest["graph"]
    print_text(f"{manifest['model']} as {kind}, weights in {manifest['weights']}")
    for name, file in manifest["files"].items():
        print_text(f"{_size(file['bytes']):>10}  {name}")
    checked = manifest["checked"]
    print_text(
        f"largest difference of a logit from the model: {checked['difference']:.1e} in "
        f"{checked['calls']} calls"
    )
    if manifest["tokenizer"] is None and manifest["model"] != "image classifier":
        print_text("no tokenizer lies beside the checkpoint, so none was written")
    print_text(f"export: {out}")
    if manifest["format"] != "torch" and manifest["model"] == "language model":
        print_next(f"suffice run {quote(str(out))} --prompt TEXT")


def _size(size: int) -> str:
    return f"{size / 1e6:,.2f} MB" if size >= 10**5 else f"{size / 1e3:,.1f} kB"  # noqa: PLR2004
