"""A language model in ONNX Runtime, read token by token.

Letters: B batch, T new tokens, P earlier ones, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from suffice.errors import CheckpointError, ConfigError
from suffice.runtime.manifest import MANIFEST, TYPES


class Session:
    """An exported language model and the text it has read.

    Args:
        folder: of the export.
        manifest: of the folder, checked.

    Raises:
        ConfigError: if onnxruntime is not installed, or the model reads no text.
        CheckpointError: if the file is no graph that the runtime takes, or has other inputs and
            outputs than the manifest says.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.state = check_state(folder, manifest)
        self.outputs = [port["name"] for port in manifest["outputs"]]
        self.runs = _opened(folder / manifest["graph"])
        for name, ports in (
            ("inputs", self.runs.get_inputs()),
            ("outputs", self.runs.get_outputs()),
        ):
            told = [(one["name"], TYPES[one["dtype"]], one["shape"]) for one in manifest[name]]
            if [(one.name, one.type, one.shape) for one in ports] != told:
                raise CheckpointError(
                    f"{folder} has a graph whose {name} are not those of its {MANIFEST}; export "
                    "the model again."
                )

    def call(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of the graph for its inputs."""
        return self.runs.run(self.outputs, feeds)


def check_state(folder: Path, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the ports of a state.

    Raises:
        ConfigError: if the model has none, so that it writes no text.
    """
    state = [port for port in manifest["inputs"] if "becomes" in port]
    if not state:
        raise ConfigError(
            f"{folder} holds a {manifest['model']}, which writes no text; call its graph with the "
            "inputs that manifest.json names."
        )
    return state


def _opened(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(
            "running an ONNX export needs onnxruntime; install it with "
            "pip install 'suffice[export]'."
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - the runtime's errors have no base of their own
        told = " ".join(str(error).split())
        raise CheckpointError(
            f"{path} is no graph that this ONNX Runtime takes ({told:.200}); install a newer one, "
            "or export the model again."
        ) from error
