"""Published recommendations as requests that are measured on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from suffice.errors import check_known
from suffice.measure.advise.advise import Advice
from suffice.measure.advise.request import Request, base_of
from suffice.measure.timing import interleave, ratio
from suffice.ops import attend
from suffice.patterns import Causal

ARTICLE = (
    "J. D. Baena, Efficient Attention Mechanisms for Tiny Language Models, "
    '"Match your constraint to the right attention pattern"'
)


@dataclass(frozen=True, kw_only=True)
class AdviceRecipe:
    """Compositions that a publication recommends for a purpose."""

    name: str  # name on the command line
    title: str  # one line
    about: str  # the mechanisms, and what is missing here
    source: str  # the publication
    section: str  # section of the publication
    # compositions, the recommended one first. {kv} is a quarter of the heads, {quarter} and
    # {eighth} are these parts of the length.
    names: tuple[str, ...]
    says: str  # claim of the source
    model: str = "15m"  # default model
    length: int = 2048  # default tokens
    task: str = "lm"  # see `Request`
    # measures something else in addition, and describes it
    measure: Callable[[Advice], str] | None = None

    def request(self, words: dict[str, Any]) -> Request:
        """Return its request, from fields of `Request.parse`; None takes defaults."""
        defaults: dict[str, Any] = {"length": self.length}
        if words.get("checkpoint") is None:
            defaults["model"] = self.model
        values = defaults | {name: value for name, value in words.items() if value is not None}
        request = Request.parse(self.task, **values | {"mechanisms": ()})
        base = base_of(request)
        most_kv = max(base.num_heads // 4, 1)
        sizes = {
            "kv": next(n for n in range(most_kv, 0, -1) if base.num_heads % n == 0),
            "quarter": max(base.length // 4, 2),
            "eighth": max(base.length // 8, 2),
        }
        return replace(request, mechanisms=tuple(name.format(**sizes) for name in self.names))

    def report(self, advice: Advice) -> Iterator[str]:
        """Yield sentences about the source's claim and about the measurements."""
        name = advice.request.mechanisms[0]
        place, standard = advice.find(name), advice.find("standard")
        yield f"The source: {self.says}"
        if place is None or standard is None or place.needs is None:
            yield f"Here: {name} is not available: {place.reason if place else 'absent'}"
            return
        state = place.needs.state / max(standard.needs.state, 1)
        yield f"Here, in closed form: {name} keeps {state:.2f}x Standard's state."
        yield f"Here, measured: {place.reason}."
        yield f"Its quality: {place.evidence_told}."
        if self.measure is not None and not advice.interrupted:
            yield self.measure(advice)


def _compare_kernels(advice: Advice) -> str:
    base = base_of(advice.request)
    shape = (1, base.num_heads, base.length, base.config.d_model // base.num_heads)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator).to(advice.device) for _ in range(3))
    with torch.inference_mode():
        samples = interleave(
            {
                impl: lambda impl=impl: attend(q, k, v, pattern=Causal(), impl=impl)
                for impl in ("auto", "matmul")
            },
            rounds=5,
            warmup=1,
            min_seconds_per_sample=1e-2,
            device=advice.device,
        )
    return (
        f"Here, one layer's attention at {base.length:,} tokens: the kernel that is chosen takes "
        f"{ratio(samples['auto'], samples['matmul']):.2f}x the time of plain products, with the "
        "same answers."
    )


RECIPES: dict[str, AdviceRecipe] = {
    recipe.name: recipe
    for recipe in (
        AdviceRecipe(
            name="tiny-edge",
            title="a tiny model on a small device: a quarter of the key/value heads",
            about="Grouped-query attention, 16 query heads on 4 in the source.",
            source=ARTICLE,
            section="recipe 1",
            names=("standard+kv:{kv}", "standard+kv:1"),
            says="75% less memory, less than 1% of quality lost.",
        ),
        AdviceRecipe(
            name="cloud-api",
            title="throughput without any change of the answers: a fused kernel",
            about="Flash attention computes what standard does; here the fused op is what standard "
            "runs unless another is asked for (`suffice show standard` names it).",
            source=ARTICLE,
            section="recipe 2",
            names=("standard", "optimised"),
            says="3 times as fast at equal quality, on a GPU.",
            measure=_compare_kernels,
        ),
        AdviceRecipe(
            name="long-context",
            title="long inputs: shared heads, every second layer with a window",
            about="Layers with a window alternate with full ones, all on a quarter of the "
            "key/value heads.",
            source=ARTICLE,
            section="recipe 3",
            names=(
                "standard+kv:{kv}+window:{quarter}+full:2",
                "standard+kv:{kv}+window:{quarter}",
                "standard+kv:{kv}",
            ),
            says="constant memory for windowed layers, 1 to 2% of quality lost.",
            length=4096,
        ),
        AdviceRecipe(
            name="decision-tree",
            title="the article's table of purposes: which constraint, which pattern",
            about="Memory-bound: one key/value head. The default: a quarter of them. Long inputs: "
            "a window. Very long ones: linear. Whatever is bound by speed: the fused kernel, which "
            "standard runs already.",
            source=ARTICLE,
            section="technique comparison matrix",
            names=("standard+kv:{kv}", "mqa", "standard+window:{quarter}", "linear"),
            says="grouped heads are the best default.",
        ),
        AdviceRecipe(
            name="local-global",
            title="five layers with a small window to one that sees everything",
            about="Of several current models; theirs have 512 to 4096 positions in the window.",
            source="Gemma Team 2025, arXiv:2503.19786",
            section="section 2",
            names=("standard+kv:{kv}+window:{eighth}+full:6", "standard+window:{eighth}+full:6"),
            says="a small state at hardly any loss of perplexity.",
            length=4096,
        ),
        AdviceRecipe(
            name="gqa-qk-norm",
            title="grouped heads, queries and keys normalised",
            about="Each head's queries and keys are divided by their root mean square; "
            "that changes training more than cost.",
            source="Yang et al. 2025, arXiv:2505.09388",
            section="section 2",
            names=("qk_norm+kv:{kv}", "standard+kv:{kv}"),
            says="norms of queries and keys make training stable.",
        ),
        AdviceRecipe(
            name="hybrid-linear",
            title="three linear layers to one with a softmax",
            about="Linear layers keep a state of one size. Those of current models have gates or a "
            "delta rule; here they are the Linear Transformer's.",
            source="MiniMax 2025, arXiv:2501.08313",
            section="section 2 (7 to 1); 3 to 1 in later models",
            names=("linear+kv:{kv}+softmax:4", "linear+softmax:4", "linear"),
            says="recall close to full attention at a fraction of the state.",
            length=4096,
        ),
    )
}


def recipe_named(name: str) -> AdviceRecipe:
    """Return a recipe of the adviser.

    Raises:
        ConfigError: for an unknown name.
    """
    check_known("recipe of the adviser", name, RECIPES)
    return RECIPES[name]
