"""Model cards: README.md files with the hub's metadata and a description in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from suffice.errors import ConfigError

TASKS = {
    "language model": "text-generation",
    "text classifier": "text-classification",
    "image classifier": "image-classification",
}
LIBRARIES = {"hf": "transformers", "onnx": "onnx"}


def card(
    name: str,
    manifest: Mapping[str, Any],
    facts: Mapping[str, Any],
    certificate: Mapping[str, Any] | None,
    *,
    licence: str,
    base_model: str | None = None,
) -> str:
    base_model = base_model or facts.get("hub", {}).get("repository")
    for option, value in (("--license", licence), ("--base-model", base_model or "a/b")):
        if not value or not all(letter.isalnum() or letter in "-._/" for letter in value):
            raise ConfigError(
                f"{option} {value!r:.60}: give an identifier of the hub, such as "
                f"{'apache-2.0' if option == '--license' else 'ORG/NAME'}."
            )
    entries: dict[str, Any] = {
        "license": licence,
        "library_name": LIBRARIES[manifest["format"]],
        "pipeline_tag": TASKS[manifest["model"]],
        "tags": ["suffice"],
    }
    if base_model:
        relation = "quantized" if "quantised" in facts else "finetune"
        entries |= {"base_model": base_model, "base_model_relation": relation}
    if certificate and certificate.get("loss"):
        entries["model-index"] = [_results(name, facts, manifest, certificate["loss"])]
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in entries.items()), "---", ""]
    lines += [f"# {name}", "", *_description(manifest, facts, base_model), ""]
    if certificate is not None:
        lines += ["## What the conversion changed", "", *_in_words(certificate), ""]
    return "\n".join(lines)


def _results(
    name: str, facts: Mapping[str, Any], manifest: Mapping[str, Any], loss: Mapping[str, Any]
) -> dict[str, Any]:
    corpus = str(facts.get("corpus", "held-out text"))
    metric = {"type": "loss", "value": loss["after"], "name": "nats per token"}
    result = {
        "task": {"type": TASKS[manifest["model"]]},
        "dataset": {"name": corpus, "type": corpus},
        "metrics": [metric],
    }
    return {"name": name, "results": [result]}


def _description(
    manifest: Mapping[str, Any], facts: Mapping[str, Any], base_model: str | None
) -> Iterator[str]:
    kind = manifest.get("architecture") or manifest.get("graph")
    origin = f", from [{base_model}](https://huggingface.co/{base_model})" if base_model else ""
    if revision := facts.get("hub", {}).get("revision"):
        origin += f" at commit `{revision}`"
    yield f"A {manifest['model']} as `{kind}`, weights in {manifest['weights']}{origin}."
    converted = facts.get("converted")
    if isinstance(converted, dict):
        yield f"Its attention was replaced: `{converted.get('to')}`."
    checked = manifest["checked"]
    yield (
        f"Written by [suffice](https://github.com/suffice-attention/suffice); its logits differ "
        f"from the model's by at most {checked['difference']:.1e} in {checked['calls']} calls."
    )
    if manifest["format"] == "hf" and manifest["model"] == "language model":
        yield from ("", "```python", "from transformers import pipeline", "")
        yield from ('print(pipeline("text-generation", "PATH")("Once upon a time"))', "```")


def _in_words(certificate: Mapping[str, Any]) -> Iterator[str]:
    layers = certificate["layers"]
    if certificate["kind"] == "exact":
        worst = max((layer["difference"] or 0.0 for layer in layers), default=0.0)
        yield (
            f"Nothing, up to rounding: each of {len(layers)} layers computes the same function, "
            f"within {worst:.0e} of its largest output in float64."
        )
    elif certificate["naive"]:
        yield "The result is approximate: maps were averaged or dropped, and nothing was fitted."
    else:
        yield (
            "The result is approximate: each layer was fitted in closed form to the outputs that "
            f"it replaces, on {certificate['calibration_tokens']:,} tokens."
        )
    if loss := certificate.get("loss"):
        interval = ""
        if loss["low"] is not None:
            interval = f" (95% interval {loss['low']:+.4f} to {loss['high']:+.4f})"
        yield (
            f"On held-out text the loss went from {loss['before']:.4f} to {loss['after']:.4f} nats "
            f"per token, {loss['change']:+.4f}{interval}, over {loss['tokens']:,} tokens."
        )
    yield from ("", "| layer | became | error of its output | state per token | parameters |")
    yield "|---|---|---|---|---|"
    for layer in layers:
        error = layer["measured"] if layer["measured"] is not None else layer["predicted"]
        shown = "exact" if layer["exact"] else "not measured" if error is None else f"{error:.1%}"
        yield (
            f"| {layer['name']} | {layer['target']} | {shown} "
            f"| {layer['state_before']:,} to {layer['state_after']:,} "
            f"| {layer['parameters_before']:,} to {layer['parameters_after']:,} |"
        )
