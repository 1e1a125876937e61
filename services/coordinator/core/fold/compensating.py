"""Bookkeeping of compensation."""

from itertools import pairwise

from services.coordinator.core import events as ev
from services.coordinator.core.fold.graph import release_targets
from services.coordinator.core.state import Compensation, Execution


def compensation_started(execution: Execution, event: ev.CompensationStarted) -> None:
    # All runs that were told to stop have ended. From here on the execution works again.
    execution.stop = None
    execution.compensable.clear()
    execution.compensation = Compensation(event.outcome, event.error, dict(pairwise(event.works)))
    release_targets(execution, event.then)
