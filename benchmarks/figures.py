"""Joins the figures of several rounds number by number. They are nested by workload, and all rounds have one shape."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

Figures = dict[str, Any]


def medians(rounds: Sequence[Figures]) -> Figures:
    return joined(rounds, lambda values: round(statistics.median(values), 3))


def ratios(rounds: Sequence[tuple[Figures, Figures]]) -> Figures:
    """`[median, lowest, highest]` of the first divided by the second, where both are of the same round."""
    quotients = [joined(pair, _quotient) for pair in rounds]
    return joined(quotients, lambda values: [round(statistics.median(values), 3), min(values), max(values)])


def joined(rounds: Sequence[Figures], join: Callable[[list[Any]], Any]) -> Figures:
    """Join numbers with `join`. Texts are listed instead, each once."""
    found: Figures = {}
    for key, first in rounds[0].items():
        values = [entry[key] for entry in rounds]
        if isinstance(first, dict):
            found[key] = joined(values, join)
        elif isinstance(first, str):
            found[key] = "; ".join(sorted(set(values)))
        else:
            found[key] = join(values)
    return found


def _quotient(pair: list[float]) -> float:
    return round(pair[0] / pair[1], 3)
