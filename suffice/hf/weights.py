"""How weights start, and which files they may come from."""

from __future__ import annotations

import json
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, cached_file

from suffice.errors import CheckpointError, ConfigError

READ = "_is_hf_initialized"  # transformers' mark on tensors that came from a file
HUB = ("cache_dir", "force_download", "proxies", "local_files_only", "token", "revision")


class Weights:
    """Beside PreTrainedModel: weights start as this library's do, and come from safetensors."""

    def started(self) -> nn.Module | None:
        """Return a model as it is before training, for the tensors of the same names here."""
        return None

    def initialize_weights(self) -> None:
        """Start every tensor that did not come from a file, buffers too."""
        marked: list[Tensor] = []
        for module in self.modules():  # type: ignore[attr-defined]
            if isinstance(module, Weights):
                marked += _start(module)
        super().initialize_weights()  # type: ignore[misc]
        for tensor in marked:
            delattr(tensor, READ)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a model with the weights of a folder or of the hub, read as safetensors alone.

        Arguments are those of `PreTrainedModel.from_pretrained`.

        Raises:
            ConfigError: if asked to unpickle, or to execute what lies beside the weights.
            CheckpointError: if the index names a file outside the folder.
        """
        if kwargs.get("use_safetensors") is False:
            raise ConfigError(
                "use_safetensors=False would unpickle a file, which can execute anything; save "
                "the weights as safetensors."
            )
        kwargs.pop("trust_remote_code", None)  # nothing here executes any
        kwargs["use_safetensors"] = True
        _check_index(pretrained_model_name_or_path, kwargs)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)  # type: ignore[misc]

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Write config.json and model.safetensors; arguments as `PreTrainedModel`'s.

        Raises:
            ConfigError: if asked to pickle.
        """
        if kwargs.get("safe_serialization") is False:
            raise ConfigError(
                "safe_serialization=False would pickle the weights; leave it out to write "
                "safetensors."
            )
        return super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]


@torch.no_grad()
def _start(model: Any) -> list[Tensor]:
    """Copy starting values into tensors that came from no file; return these, marked as done."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    missing = {n: t for n, t in own.items() if not getattr(t, READ, False) and not t.is_meta}
    started = model.started() if missing else None
    if started is None:
        return []
    source = {**dict(started.named_parameters()), **dict(started.named_buffers())}
    for name, tensor in missing.items():
        initialization.copy_(tensor, source[name].to(tensor.device, tensor.dtype))
        setattr(tensor, READ, True)
    return list(missing.values())


def _check_index(place: Any, kwargs: dict[str, Any]) -> None:
    """Refuse an index of shards that lie elsewhere or are not safetensors."""
    if place is None:
        return
    asked = {name: kwargs[name] for name in HUB if name in kwargs}
    variant = kwargs.get("variant")
    name = SAFE_WEIGHTS_INDEX_NAME
    if variant is not None:
        name = name.replace(".index.json", f".index.{variant}.json")
    path = cached_file(
        str(place),
        name,
        subfolder=kwargs.get("subfolder", ""),
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **asked,
    )
    if path is None:
        return
    try:
        with open(path, encoding="utf-8") as file:
            names = set(json.load(file)["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is no index of weights ({error}); save the model again."
        ) from error
    for name in sorted(map(str, names)):
        plain = PurePosixPath(name).name == PureWindowsPath(name).name == name
        if not plain or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{path} names the shard {name!r}; a shard is a .safetensors file in the same "
                "folder. Do not use this folder."
            )
