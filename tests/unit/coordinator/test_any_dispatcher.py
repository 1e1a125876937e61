"""A message goes to whichever dispatcher answers."""

from typing import Any, cast

import grpc
import pytest

from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.errors import DependencyUnavailable
from services.coordinator.app.owned_execution import ReceivedReport
from services.coordinator.peers.any_dispatcher import AnyDispatcher
from tests.support.manual_clock import ManualClock
from windlass.coordinator.v1.sessions_pb2 import RunReport
from windlass.dispatcher.v1.queue_pb2 import DeliverResponse

EXECUTION_ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ab"
REPORT = ReceivedReport("r", f"{EXECUTION_ID}.1", EXECUTION_ID, 1, 2, "i", None, RunReport())


class Dispatchers:
    """Channels to dispatchers, of which some are away. They keep the order in which they were asked."""

    def __init__(self, *away: str) -> None:
        self.away = away
        self.asked: list[str] = []

    def get(self, address: str) -> Any:
        return _Channel(self, address)


class _Channel:
    def __init__(self, dispatchers: Dispatchers, address: str) -> None:
        self._dispatchers = dispatchers
        self._address = address

    def unary_unary(self, *given: Any, **more: Any) -> Any:
        async def call(request: Any) -> DeliverResponse:
            self._dispatchers.asked.append(self._address)
            if self._address in self._dispatchers.away:
                metadata = grpc.aio.Metadata()
                raise grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, metadata, metadata)
            return DeliverResponse(found=True)

        return call

    unary_stream = stream_unary = stream_stream = unary_unary


def any_of(dispatchers: Dispatchers) -> AnyDispatcher:
    return AnyDispatcher(AddressBook("d0:1,d1:1"), cast("Any", dispatchers), ManualClock())


async def test_a_dispatcher_that_hangs_is_waited_for_once() -> None:
    dispatchers = Dispatchers("d0:1")
    one = any_of(dispatchers)
    assert [await one.deliver(REPORT, "w") for _ in range(3)] == [True] * 3
    assert dispatchers.asked == ["d0:1", "d1:1", "d1:1", "d1:1"]


async def test_a_message_that_no_dispatcher_takes_is_tried_again_later() -> None:
    dispatchers = Dispatchers("d0:1", "d1:1")
    with pytest.raises(DependencyUnavailable):
        await any_of(dispatchers).deliver(REPORT, "w")
    assert dispatchers.asked == ["d0:1", "d1:1"]
