"""Groups of dead letters. Coordinators count runs; executions that could not be admitted are counted here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.api.app.ports import DeadLetterView
from services.chassis.grpc.timestamps import micros_of
from windlass.api.v1 import dead_letters_pb2 as pb

_WORKFLOWS_MAX: Final = 20


def merged_groups(
    groups: Sequence[pb.DeadLetterGroup], letters: Sequence[DeadLetterView], *, limit: int
) -> list[pb.DeadLetterGroup]:
    """The groups of runs with those of these executions, which are in order, the newest first. The fingerprints of both
    never meet."""
    found = [*groups, *_groups_of(letters)]
    return sorted(found, key=lambda group: micros_of(group.last_time), reverse=True)[:limit]


def _groups_of(letters: Sequence[DeadLetterView]) -> list[pb.DeadLetterGroup]:
    by_fingerprint: dict[str, list[pb.DeadLetter]] = {}
    for letter in letters:
        by_fingerprint.setdefault(letter.record.error.fingerprint, []).append(letter.record)
    return [_group(fingerprint, records) for fingerprint, records in by_fingerprint.items()]


def _group(fingerprint: str, records: Sequence[pb.DeadLetter]) -> pb.DeadLetterGroup:
    workflows = sorted({record.workflow for record in records})
    return pb.DeadLetterGroup(
        fingerprint=fingerprint,
        count=len(records),
        first_time=records[-1].quarantine_time,
        last_time=records[0].quarantine_time,
        workflows=workflows[:_WORKFLOWS_MAX],
        sample=records[0],
    )
