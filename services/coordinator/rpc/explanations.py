"""Translates an explanation to the public message. Api adds its text and the shares, because it asks the queue too."""

from __future__ import annotations

from services.chassis.grpc.timestamps import put_micros
from services.coordinator.app.blocker_texts import BlockerText
from services.coordinator.app.explainer import Explained
from services.coordinator.core.explaining import Blocker
from services.coordinator.rpc.public_executions import put_time
from windlass.api.v1 import resources_pb2 as api


def explanation_of(explained: Explained) -> api.Explanation:
    explanation = api.Explanation()
    for blocker, text in explained.blockers:
        _fill(explanation.blockers.add(), explained.execution_id, blocker, text)
    for cause, span in explained.spent.items():
        share = explanation.time_split.add(cause=api.Explanation.Cause.Value(cause.value))
        put_micros(share.duration, span)
    for kept in explained.kept:
        put_time(explanation.kept_signals.add(signal=kept.signal, count=kept.number).oldest_time, kept.since)
    return explanation


def _fill(shown: api.Explanation.Blocker, execution_id: str, blocker: Blocker, text: BlockerText) -> None:
    shown.kind = api.Explanation.Cause.Value(blocker.cause.value)
    shown.message = text.sentence
    setattr(shown, "try", text.command)
    if blocker.work is not None:
        shown.node = blocker.work.node.id
    if blocker.run is not None:
        shown.run_id = f"{execution_id}.{blocker.run.number}"
    put_time(shown.since_time, blocker.since)
    put_time(shown.until_time, blocker.until)
