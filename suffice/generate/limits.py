"""What cannot be generated to its end is refused before anything is read."""

from __future__ import annotations

from suffice.errors import ConfigError
from suffice.generate.writer import Writer
from suffice.memory import Memory


def most_tokens(lm: Writer) -> int | None:
    """Return how many tokens a text of a model may have; None = any number."""
    limits = [spec.max_length for spec in lm.specs]
    limits.append(lm.config.length if lm.config.positions == "learned" else None)
    return min((one for one in limits if one is not None), default=None)


def room(lm: Writer, memory: Memory, prompt: int) -> int | None:
    """Return how many tokens can be written behind a prompt; None = any number.

    Args:
        lm: the model.
        memory: what it keeps.
        prompt: tokens of the prompt.
    """
    ends = [end for end in (memory.capacity, most_tokens(lm)) if end is not None]
    return max(0, min(ends) - prompt + 1) if ends else None


def check_room(lm: Writer, memory: Memory, *, prompt: int, longest: int, new: int) -> None:
    """Refuse more tokens than the model or the memory can hold.

    The last new token is not read again, so prompt + new - 1 tokens are.

    Args:
        lm: the model.
        memory: what it keeps.
        prompt: columns of the batch of prompts, padding included.
        longest: tokens of the longest prompt.
        new: tokens to write.

    Raises:
        ConfigError: with what is needed and what there is.
    """
    if not new:
        return
    if memory.capacity is not None and prompt + new - 1 > memory.capacity:
        raise ConfigError(
            f"a prompt of {prompt} and {new} new tokens need {prompt + new - 1} positions of "
            f"{memory!r}, which has {memory.capacity}; give a longer one, or ask for fewer tokens."
        )
    if lm.config.positions == "learned" and longest + new - 1 > lm.config.length:
        raise ConfigError(
            f"a prompt of {longest} and {new} new tokens need {longest + new - 1} positions of a "
            f"model that learned {lm.config.length}; ask for fewer tokens, or cut the prompt."
        )
    for number, spec in enumerate(lm.specs):
        if spec.max_length is not None and longest + new - 1 > spec.max_length:
            raise ConfigError(
                f"a prompt of {longest} and {new} new tokens need {longest + new - 1} positions; "
                f"{type(spec.mixing).__name__} in block {number} reaches {spec.max_length}; ask "
                "for fewer tokens, or cut the prompt."
            )
