"""Arguments of a kind that cannot be meant are refused before anything is read."""

from __future__ import annotations

from numbers import Integral

from suffice.errors import ConfigError
from suffice.generate.sampling import Sampling
from suffice.generate.writer import Writer
from suffice.memory import Memory


def is_whole(value: object) -> bool:
    """Return whether this is a whole number, also NumPy's; True and False are none.

    Example:
        >>> is_whole(3), is_whole(3.0), is_whole(True)
        (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_kinds(lm: Writer, sampling: Sampling, memory: Memory, whole: dict[str, object]) -> None:
    """Refuse a model, a sampling, a memory or counts that are none.

    Args:
        lm: the model.
        sampling: how a token is chosen.
        memory: what each layer keeps.
        whole: numbers by name.

    Raises:
        ConfigError: naming what was given.
    """
    if not hasattr(lm, "config") or not hasattr(lm, "state"):
        raise ConfigError(
            f"lm={lm!r:.80} is a {type(lm).__name__}, no language model; give what "
            "LMConfig(...).build(...) or suffice.models.folder.load returns."
        )
    if not isinstance(sampling, Sampling):
        raise ConfigError(f"sampling={sampling!r:.80}: give Greedy() or Sample(...).")
    if not isinstance(memory, Memory):
        raise ConfigError(
            f"memory={memory!r} is no memory; give an instance such as Dynamic() or Rolling(256)."
        )
    for name, value in whole.items():
        if not is_whole(value):
            raise ConfigError(f"{name}={value!r} is not a whole number.")
