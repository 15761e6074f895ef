"""Results that look like a real comparison, drawn from fixed seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from suffice.comparison.results import Cell, Results, Speed
from suffice.data.survey import Survey

# mechanism: parameters of a layer, FLOPs, true test accuracy, latency in seconds, peak bytes
MECHANISMS = {
    "standard": (66_048, 10_485_760, 0.976, 4.1e-3, 6_400_000),
    "optimised": (49_536, 8_388_608, 0.975, 3.4e-3, 5_900_000),
    "efficient": (33_024, 6_291_456, 0.974, 2.5e-3, 5_200_000),
    "super_attention": (37_184, 7_340_032, 0.979, 2.9e-3, 5_300_000),
}


def epoch_record(epoch: int, pace: float, accuracy: float, rng: np.random.Generator) -> dict:
    """One epoch of a curve that flattens towards a final accuracy after about `pace` epochs."""
    left = np.exp(-epoch / pace)
    share = 1 - 0.6 * left
    validation = float(min(1.0, accuracy * share + rng.normal(0, 0.004)))
    train = float(min(1.0, accuracy * share * 1.01))
    return {
        "epoch": epoch,
        "train_loss": float(0.05 + 2.2 * left),
        "train_accuracy": train,
        "validation_loss": float((0.08 + 2.0 * left) * np.exp(rng.normal(0, 0.06))),
        "validation_accuracy": validation,
        "seconds": float(1.5 + rng.normal(0, 0.02)),
    }


def make_cell(
    mechanism: str = "standard",
    num_heads: int = 4,
    seed: int = 0,
    *,
    test_accuracy: float = 0.976,
    flops: int = 1000,
    parameters: int = 100,
    epochs: int = 1,
    top5: float | None = None,
) -> Cell:
    """One cell with the values given and plausible others."""
    rng = np.random.default_rng([seed, num_heads, len(mechanism)])
    pace = 2.0 + 0.4 * (len(mechanism) % 4)
    records = tuple(epoch_record(e, pace, test_accuracy, rng) for e in range(1, epochs + 1))
    return Cell(
        mechanism=mechanism,
        num_heads=num_heads,
        seed=seed,
        parameters_layer=parameters,
        parameters_model=parameters * 3 + 40_000,
        flops=flops,
        epochs=records,
        best_epoch=epochs,
        stopped_early=False,
        seconds_per_epoch=float(np.mean([r["seconds"] for r in records] or [1.5])),
        train_loss=records[-1]["train_loss"] if records else 1.0,
        train_accuracy=records[-1]["train_accuracy"] if records else 0.5,
        train_top5=top5,
        test_loss=float(0.4 * (1 - test_accuracy) + 0.05),
        test_accuracy=test_accuracy,
        test_top5=top5,
    )


def make_results(cells=(), speeds=(), *, margin=0.01, baseline="standard", **changes) -> Results:
    """A comparison of the cells given."""
    values = {
        "task": "digits",
        "recipe": "digits_vit",
        "title": "ViT on 8x8 digits",
        "machine": {"cpu": "Some CPU @ 2 GHz", "cores": 2, "threads": 2, "gpu": None},
        "versions": {"python": "3.11.2", "torch": "2.13.0", "numpy": "2.4.6", "suffice": "0.1.0"},
        "commit": "0" * 40,
        "command": "suffice compare --seeds 5",
        "started": "2025-01-02T03:04:05+00:00",
        "seconds": 93.5,
        **changes,
    }
    return Results(
        cells=tuple(cells), speeds=tuple(speeds), margin=margin, baseline=baseline, **values
    )


def make_survey(test: int) -> Survey:
    """Counts of data with so many test rows; nothing else of them is known."""
    return Survey(rows={"train": 1000, "validation": 100, "test": test}, counts={})


def from_accuracies(
    accuracies: dict[str, list[float]], *, flops: dict[str, int] | None = None, **changes
) -> Results:
    """A comparison with one list of test accuracies, by seed, per "mechanism" or "mechanism@heads".

    Unless given, FLOPs fall in the order of the mechanisms.
    """
    cells = []
    for place, (key, values) in enumerate(accuracies.items()):
        name, _, heads = key.partition("@")
        own = (flops or {}).get(key, 1000 - 100 * place)
        cells += [
            make_cell(name, int(heads or 1), seed, test_accuracy=value, flops=own, parameters=own)
            for seed, value in enumerate(values)
        ]
    return make_results(cells, **changes)


def realistic(heads=(1, 4), seeds=5, epochs=12, *, top5=False, **changes) -> Results:
    """Four mechanisms at several heads and seeds; the seed's own effect is shared, as in truth."""
    rng = np.random.default_rng(7)
    shared = rng.normal(0, 0.003, size=seeds)
    cells, speeds = [], []
    for h in heads:
        for name, (parameters, flops, accuracy, latency, peak) in MECHANISMS.items():
            for seed in range(seeds):
                own = accuracy - 0.004 * (h == 1) + shared[seed] + rng.normal(0, 0.002)
                cells.append(
                    make_cell(
                        name,
                        h,
                        seed,
                        test_accuracy=float(np.round(min(own, 1.0) * 1800) / 1800),
                        flops=flops,
                        parameters=parameters,
                        epochs=epochs - (seed % 3),
                        top5=0.995 if top5 else None,
                    )
                )
            times = latency * (1 + 0.08 * h) * (1 + np.abs(rng.normal(0, 0.05, size=15)))
            speeds.append(
                Speed(
                    mechanism=name,
                    num_heads=h,
                    latency=tuple(float(t) for t in times),
                    batch_size=64,
                    peak_bytes=peak + 50_000 * h,
                )
            )
    return make_results(cells, speeds, **changes)


def recall_results(
    solved: dict[str, int], *, seeds: int, recipe: str = "atlas_mqar8_70k", parameters: int = 100
) -> Results:
    """A comparison on a task of recall, which the first so many seeds of a mechanism solve."""
    cells = [
        solving(make_cell(name, 4, seed, epochs=4, parameters=parameters), seed < count)
        for name, count in solved.items()
        for seed in range(seeds)
    ]
    return make_results(cells, recipe=recipe, task="mqar", chance=1 / 8)


def solving(cell: Cell, solves: bool) -> Cell:
    """The cell, whose last epoch solves its task or stays at chance."""
    value = 1.0 if solves else 0.125
    epochs = [record | {"validation_accuracy": 0.125} for record in cell.epochs]
    epochs[-1] |= {"validation_accuracy": value}
    return replace(cell, epochs=tuple(epochs), test_accuracy=value)
