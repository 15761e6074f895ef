"""`suffice export`: a model as files that other programs run."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from rich.console import Console
from typer import Option

from suffice.cli.options import (
    AnyModel,
    JsonFlag,
    Quiet,
    TokenizerOption,
    check_out,
    folder_next_to,
    known,
)
from suffice.cli.terminal import print_json, print_next, print_text
from suffice.errors import ConfigError

GGUF = "gguf"
FORMS = ("hf", "onnx", GGUF)


def export(
    checkpoint: AnyModel,
    form: Annotated[
        str,
        Option(
            "--format",
            help="hf: for transformers; onnx: for ONNX Runtime; gguf: for llama.cpp, Ollama and "
            "LM Studio.",
            **known("--format", "suffice.cli.export", "FORMS"),
        ),
    ],
    out: Annotated[
        Path | None,
        Option(help="Folder of the export, CHECKPOINT-FORMAT by default; for gguf a file."),
    ] = None,
    kind: Annotated[
        str | None,
        Option("--type", help="For gguf: f32, f16 (default), q8_0 or q4_0; packed codes are kept."),
    ] = None,
    card: Annotated[
        bool, Option("--card", help="Write README.md, a model card; needs --license.")
    ] = False,
    licence: Annotated[
        str | None, Option("--license", help="For the card: of the weights, such as apache-2.0.")
    ] = None,
    base_model: Annotated[
        str | None,
        Option(help="For the card: ORG/NAME of the weights; by default where they were fetched."),
    ] = None,
    push: Annotated[
        str | None, Option(help="Also upload the folder to ORG/NAME of the hub, private if new.")
    ] = None,
    tokenizer: TokenizerOption = None,
    as_json: JsonFlag = False,
    quiet: Quiet = False,
) -> None:
    """Write a model for other programs, check it against the model, and list it in manifest.json.

    An hf export loads in transformers without this library; it is exact. An onnx graph takes
    tokens, valid and a state as flat inputs, for any batch, chunk and past, and returns logits and
    the state. `suffice run` writes text with an onnx or hf export. Nothing in the folder is
    pickled, and no path of this machine is in it. It appears complete or not at all.
    """
    from suffice.export import export as export_model
    from suffice.loading import locate
    from suffice.utils.hub import check_name, upload

    if card != (licence is not None) or (base_model is not None and not card):
        raise ConfigError(
            "a card states the licence of the weights, which only you know: give --card "
            "--license ID [--base-model ORG/NAME], or none of them."
        )
    if push is not None:
        check_name(push)
    if form == GGUF and (card or push is not None):
        raise ConfigError(f"--card and --push are for folders; leave them out with {GGUF}.")
    if form == GGUF:
        _export_gguf(checkpoint, out, kind or "f16", tokenizer, as_json=as_json, quiet=quiet)
        return
    if kind is not None:
        raise ConfigError(f"--type {kind} is for --format {GGUF}; leave it out.")
    if checkpoint.is_dir():  # a comparison's folder stands for its best model
        checkpoint = locate(checkpoint)
    out = out or folder_next_to(checkpoint, form)
    check_out(out, checkpoint=checkpoint)
    with Console(stderr=True, quiet=quiet).status("") as status:
        card_entries = {"licence": licence, "base_model": base_model}
        manifest = export_model(
            checkpoint, form, out, tokenizer=tokenizer, step=status.update, **card_entries
        )
        if push is not None:
            status.update(f"uploading to {push}")
            upload(out, push)
    if as_json:
        print_json(manifest)
    else:
        _print(manifest, out)


def _export_gguf(
    checkpoint: Path,
    out: Path | None,
    kind: str,
    tokenizer: Path | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    from suffice.export import export_gguf

    out = out or folder_next_to(checkpoint, f"{kind}.{GGUF}")
    check_out(out, checkpoint=checkpoint)
    with Console(stderr=True, quiet=quiet).status(f"writing {out}"):
        written = export_gguf(checkpoint, out, kind=kind, tokenizer=tokenizer)
    if as_json:
        print_json(written)
        return
    print_text(f"language model as {written['architecture']}, matrices in {written['type']}")
    print_text(f"{_size(written['bytes']):>10}  {out}")
    print_text(f"largest difference of a logit from the model: {written['difference']:.1e}")
    print_text(
        f"Ollama: echo 'FROM ./{out.name}' > Modelfile && ollama create {out.stem} -f Modelfile\n"
        f"LM Studio: copy it to PUBLISHER/{out.stem}/{out.name} in its folder of models"
    )
    print_next(f"llama-cli -m {quote(str(out))} -p TEXT")


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
        print_text("the checkpoint has no tokenizer, so none was written")
    print_text(f"export: {out}")
    if manifest["model"] == "language model":
        print_next(f"suffice run {quote(str(out))}")


def _size(size: int) -> str:
    return f"{size / 1e6:,.2f} MB" if size >= 10**5 else f"{size / 1e3:,.1f} kB"  # noqa: PLR2004
