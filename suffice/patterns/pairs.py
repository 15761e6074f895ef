"""How many pairs a pattern allows, exact, without looking at each.

Letters: T queries, S keys.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from suffice.patterns.layout import count_pairs

if TYPE_CHECKING:
    from suffice.patterns.base import Pattern


def pairs_of(pattern: Pattern, queries: int, keys: int) -> int:
    """Count the pairs some head sees, of `queries` that stand last among `keys`.

    What lies only at multiples of a spacing is counted residue by residue; of a union, each such
    term adds what the terms before it do not allow.
    """
    if pattern.spacing > 1:
        return sum(
            times * part.pairs(of_queries, of_keys)
            for (part, of_queries, of_keys), times in residues(pattern, queries, keys).items()
        )
    terms = pattern.terms()
    spaced = [term for term in terms if term.spacing > 1]
    if not spaced or pattern.heads is not None:
        return count_pairs(pattern, queries, keys)
    near = [term for term in terms if term.spacing == 1]
    done = [reduce(or_, near)] if near else []
    total = sum(part.pairs(queries, keys) for part in done)
    for term in spaced:
        total += term.pairs(queries, keys)
        if done:
            total -= (term & reduce(or_, done)).pairs(queries, keys)
        done.append(term)
    return total


def residues(pattern: Pattern, queries: int, keys: int) -> Counter[tuple[Pattern, int, int]]:
    """Return (pattern, queries, keys) of each residue of the pattern's spacing, with how often.

    The positions of one residue are counted in steps of the spacing; the queries still stand last
    among the keys. A residue without a query or without a key is left out.
    """
    step = pattern.spacing
    found: Counter[tuple[Pattern, int, int]] = Counter()
    for first in range(min(step, keys)):
        last = (keys - 1 - first) // step
        of_queries = last - (keys - queries - 1 - first) // step
        if of_queries > 0:
            found[pattern.every(step, first), of_queries, last + 1] += 1
    return found
