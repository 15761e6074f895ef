"""A table of the digits whose models have weights, and what they look at."""

from __future__ import annotations

from dataclasses import replace

import torch

from papers.tests.tiny import TINY
from suffice.comparison.plan import describe
from suffice.models import folder
from suffice_papers import request as request_module
from suffice_papers import tables
from suffice_papers.maps import request_maps, weights_of
from suffice_papers.tables import Table
from tests.comparison.conftest import quick

ONE = replace(TINY, mechanisms=("standard", "super_attention"), heads=(1, 2))
MAPS = Table(
    name="maps", title="Looks", source="", shows="maps", parts=("tiny",), figures=("maps",)
)
BOTH = replace(MAPS, name="both", parts=("tiny", "other"))


def register(monkeypatch, folder) -> None:
    """Let the registry be two tables of the digits and what their models look at."""
    made = {"tiny": ONE, "other": replace(ONE, name="other"), "maps": MAPS, "both": BOTH}
    monkeypatch.setattr(tables, "TABLES", made)
    monkeypatch.setattr(request_module, "recipe", scaled)
    monkeypatch.chdir(folder)


def scaled(name, *, scale="paper"):
    """The digits' recipe at either scale; the small one trains less."""
    return replace(quick(name, epochs=1 if scale == "small" else 2), scale=scale)


def keep(request, **changes) -> None:
    """Write weights of every cell of a request, as a training does."""
    for key in request.plan.cells:
        torch.manual_seed(key[2])
        place = weights_of(request, key).parent
        described = describe(replace(request.recipe, **changes))
        folder.save(place, request.recipe.build(*key[:2]), recipe=described)


def kept(scale="small", **words):
    request = request_maps(ONE, scale=scale, heads=None, out=None, **words)
    keep(request)
    return request
