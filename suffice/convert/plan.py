"""Which layer becomes what: one target for all, or a file that names one for each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from suffice.convert.moments import attentions
from suffice.convert.target import Steps, steps_of
from suffice.errors import ConfigError, DataError
from suffice.text.plain import read_text

Target = str | Sequence[str] | Mapping[str, str]


def plan_of(model: nn.Module, target: Target) -> dict[str, Steps]:
    """Return the changes of each attention layer by the name of its module.

    Args:
        model: any with attention layers of this library.
        target: words for all layers, a list with words for each in order, or words by name, where
            a layer that is not named stays.

    Raises:
        ConfigError: if the words are not legal, or do not fit the layers.
    """
    names = list(attentions(model))
    if not names:
        raise ConfigError(
            f"{type(model).__name__} holds no attention layer of this library; convert a model of "
            "suffice.models, or read one by suffice.convert.open_source."
        )
    if isinstance(target, str):
        return dict.fromkeys(names, steps_of(target))
    if isinstance(target, Mapping):
        if strange := sorted(map(str, target.keys() - set(names))):
            raise ConfigError(
                f"the plan names {strange[0]!r}, which is no attention layer; there are "
                f"{', '.join(names[:8])}{' and more' if len(names) > 8 else ''}."  # noqa: PLR2004
            )
        return {name: steps_of(target.get(name, "keep")) for name in names}
    if len(target) != len(names):
        raise ConfigError(
            f"the plan is for {len(target)} layers and the model has {len(names)}; give one entry "
            "for each."
        )
    return {name: steps_of(words) for name, words in zip(names, target, strict=True)}


def read_plan(path: Path) -> list[str] | dict[str, str]:
    """Return the target in a file such as {"layers": ["keep", "gqa:2"]}.

    "layers" is a list in the model's order, or an object by name; "facts" may hold anything.

    Raises:
        DataError: if it is no such file.
    """
    try:
        content = read_text(path)
    except DataError as error:
        raise DataError(f"no plan can be read: {error} `suffice search` writes one.") from error
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error!s:.100}); give a plan.") from error
    layers = found.get("layers") if isinstance(found, dict) else None
    words = list(layers.values()) if isinstance(layers, dict) else layers
    legal = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if not legal or found.keys() - {"layers", "facts"}:
        raise DataError(
            f'{path} is no plan; write {{"layers": ["keep", "gqa:2", ...]}} with one target for '
            'each layer, beside it only "facts".'
        )
    return layers


def plan_to_json(targets: Sequence[str], **facts: Any) -> dict[str, Any]:
    """Return what `read_plan` reads.

    Args:
        targets: words for each layer.
        **facts: what else is known of the plan.

    Raises:
        ConfigError: if words are not legal.
    """
    for words in targets:
        steps_of(words)
    return {"layers": list(targets), "facts": facts}
