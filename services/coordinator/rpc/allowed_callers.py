"""The callers that each method allows. A method without a rule is not served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.chassis.identity.callers import Rule, runners, services
from services.chassis.lease.frames import HEARD_ITEMS_MAX

_READS: Final = "/windlass.coordinator.v1.ReadService"
_CIRCUITS: Final = "/windlass.coordinator.v1.CircuitService"
_DEAD_LETTERS: Final = "/windlass.coordinator.v1.DeadLetterReadService"
_REPLAYS: Final = "/windlass.coordinator.v1.ReplayService"
_OUTPUTS: Final = "/windlass.coordinator.v1.RunnerOutputs"
# 64 MiB at 2 Mbit/s.
_TRANSFER_SECONDS: Final = 300.0

RULES: Final[Mapping[str, Rule]] = {
    # Runners with a RUNNER key from anywhere, or the stack's own runners with a certificate.
    "/windlass.coordinator.v1.RunnerSessions/Session": (runners() | services("runner"))
    .within(None)
    .holding(HEARD_ITEMS_MAX),
    f"{_OUTPUTS}/UploadOutput": (runners() | services("runner")).within(_TRANSFER_SECONDS),
    f"{_OUTPUTS}/DownloadOutput": (runners() | services("runner")).within(_TRANSFER_SECONDS),
    "/windlass.coordinator.v1.WatchService/Watch": services("api").within(None),
    f"{_CIRCUITS}/ListCircuits": services("api"),
    f"{_CIRCUITS}/GetCircuit": services("api"),
    f"{_CIRCUITS}/ResetCircuit": services("api"),
    f"{_CIRCUITS}/OpenCircuit": services("api"),
    f"{_READS}/GetExecutions": services("api"),
    f"{_READS}/ListExecutions": services("api"),
    f"{_READS}/ListRuns": services("api"),
    f"{_READS}/GetRun": services("api"),
    f"{_READS}/ReadRunOutput": services("api").within(_TRANSFER_SECONDS),
    f"{_READS}/ReadRunInputs": services("api"),
    f"{_READS}/StreamRunInputs": services("api").within(_TRANSFER_SECONDS),
    f"{_READS}/ListEvents": services("api"),
    f"{_DEAD_LETTERS}/ListDeadLetters": services("api"),
    f"{_DEAD_LETTERS}/ListDeadLetterGroups": services("api"),
    f"{_DEAD_LETTERS}/GetDeadLetter": services("api"),
    f"{_READS}/FindAnswer": services("api"),
    f"{_READS}/GetPastExecution": services("api"),
    f"{_READS}/ExplainExecution": services("api"),
    f"{_READS}/ListApprovals": services("api"),
    f"{_READS}/GetApproval": services("api"),
    f"{_READS}/GetStartOrder": services("api"),
    f"{_READS}/ListModules": services("api"),
    f"{_REPLAYS}/ExportJournal": services("api").within(_TRANSFER_SECONDS),
    f"{_REPLAYS}/ReplayJournal": services("api").within(_TRANSFER_SECONDS),
    f"{_REPLAYS}/ReplayParts": services("api").within(_TRANSFER_SECONDS),
    f"{_REPLAYS}/ImportParts": services("api").within(_TRANSFER_SECONDS),
}
