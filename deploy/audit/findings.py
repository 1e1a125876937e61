"""Counts the cases of each promise that were checked, and those that broke it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

_EXAMPLES_MAX: Final = 10

TITLES: Final = {
    "S1": "a journal is 1..n without a gap",
    "S2": "every record carries its epoch, which never falls",
    "S3": "epochs rise at every grant",
    "S4": "nothing acknowledged is lost",
    "S5": "a repeated request key gets the first answer",
    "S6": "folding the journal equals the projections",
    "S7": "terminal is final, but for a reopening",
    "S8": "one accepted outcome per piece of work",
    "S9": "attempt numbers are granted once",
    "S10": "a node starts only when its join holds",
    "S11": "no two live leases on one thing",
    "S12": "nothing of one workspace reaches another",
    "S13": "never more executions going than slots",
    "S14": "at most one execution per request key",
    "S16": "a dead letter is resolved once",
    "S18": "nothing is granted while paused",
    "S19": "no timer is early, none fires twice",
    "S20": "half-open circuits let through only their permits",
    "S26": "a take-over grants no live run again",
}


@dataclass(slots=True)
class Finding:
    promise: str
    title: str
    cases: int = 0
    broken_count: int = 0
    # Some examples.
    broken: list[str] = field(default_factory=list)


class Findings:
    def __init__(self) -> None:
        self._by_promise = {promise: Finding(promise, title) for promise, title in TITLES.items()}

    def saw(self, promise: str, count: int = 1) -> None:
        self._by_promise[promise].cases += count

    def broke(self, promise: str, what: str) -> None:
        finding = self._by_promise[promise]
        finding.broken_count += 1
        if len(finding.broken) < _EXAMPLES_MAX:
            finding.broken.append(what)

    def check(self, promise: str, holds: bool, what: str) -> None:
        """Count one case of the promise, which is broken unless it `holds`."""
        self.saw(promise)
        if not holds:
            self.broke(promise, what)

    @property
    def broken_count(self) -> int:
        return sum(finding.broken_count for finding in self._by_promise.values())

    def lines(self) -> list[dict[str, Any]]:
        return [asdict(finding) for finding in self._by_promise.values()]
