"""What a call of `generate` gives.

Letters: B rows, T tokens of the longest prompt, N new tokens of the longest row.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from suffice.models.state import ModelState


@dataclass(frozen=True, kw_only=True, eq=False)
class Generated:
    """Prompts and what was written behind them.

    Args:
        tokens: int64 [B, T + N]: padding, prompt, new tokens, padding.
        prompts: tokens of each prompt.
        lengths: new tokens of each row, the stop id included.
        scores: [B], sum of the log-probabilities of the new tokens over lengths^length_penalty,
            where beams were searched; else None.
        state: of the model behind all but the last tokens, where it was asked for; else None.
        steps: how single tokens went through the model: "native (avx512)", or "torch" and why.
    """

    tokens: Tensor
    prompts: tuple[int, ...]
    lengths: tuple[int, ...]
    scores: Tensor | None = None
    state: ModelState | None = None
    steps: str = "torch"

    @property
    def new(self) -> Tensor:
        """The new tokens [B, N], padding behind those of shorter rows."""
        return self.tokens[:, max(self.prompts) :]

    def row(self, row: int) -> list[int]:
        """Return prompt and new tokens of a row, without any padding."""
        end = max(self.prompts)
        return self.tokens[row, end - self.prompts[row] : end + self.lengths[row]].tolist()
