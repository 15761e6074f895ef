"""A comparison with a verdict, without the command line: one epoch, two seeds, real digits."""

import dataclasses
import tempfile
from pathlib import Path

from rich.console import Console

from suffice.comparison import judge, sentence
from suffice.comparison.compare import compare
from suffice.comparison.plan import Plan
from suffice.train.recipes import recipe

digits = recipe("digits_vit")
short = dataclasses.replace(digits, training=dataclasses.replace(digits.training, epochs=1))
plan = Plan(
    recipe=short, mechanisms=("standard", "efficient"), heads=(4,), seeds=2, baseline="standard"
)

with tempfile.TemporaryDirectory() as folder:
    results = compare(plan, Path(folder), console=Console(stderr=True), quiet=True)

assert results, "None = a share of the cells was trained, and others are missing"
for cell in results.cells:
    print(f"{cell.mechanism:10} seed {cell.seed}: {cell.test_accuracy:.1%} of the test images")
print(sentence(judge(results), results))
