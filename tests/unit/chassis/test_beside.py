"""Long work of a call is done beside the event loop, one piece at a time, and workspaces take turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from services.chassis.grpc.beside import HERE_BYTES_MAX, beside
from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.validation import search_nul
from services.chassis.identity.callers import CallerKind, Identity, set_caller
from services.chassis.process import fair_line
from tests.support.probe import INLINE_TURNS, turns_during, until
from tests.unit.chassis.shop import Shop

LARGE = HERE_BYTES_MAX + 1


async def of(workspace: str, work: Callable[[], None]) -> None:
    set_caller(Identity(CallerKind.MEMBER, f"key of {workspace}", workspace, "ADMIN"))
    await beside(LARGE, work)


async def test_only_large_work_leaves_the_thread_of_the_loop() -> None:
    here = threading.get_ident()
    assert await beside(HERE_BYTES_MAX, threading.get_ident) == here
    assert await beside(LARGE, threading.get_ident) != here


async def test_work_that_fails_fails_where_it_was_asked_for() -> None:
    with pytest.raises(ZeroDivisionError):
        await beside(LARGE, lambda: 1 // 0)


async def test_workspaces_take_turns_and_one_piece_is_done_at_a_time() -> None:
    done: list[str] = []
    under_way, may_end = threading.Event(), threading.Event()

    def first() -> None:
        under_way.set()
        may_end.wait()

    tasks = [asyncio.create_task(of("loud", first))]
    await until(under_way.is_set, 5.0, "the first piece")
    tasks += [asyncio.create_task(of("loud", lambda: done.append("loud"))) for _ in range(3)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(of("quiet", lambda: done.append("quiet"))))
    await asyncio.sleep(0)
    assert not done
    may_end.set()
    await asyncio.gather(*tasks)
    assert done == ["quiet", "loud", "loud", "loud"]


async def test_a_workspace_with_too_much_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_line, "WAITING_MAX", 1)
    under_way, may_end = threading.Event(), threading.Event()

    def first() -> None:
        under_way.set()
        may_end.wait()

    tasks = [asyncio.create_task(of("loud", first))]
    await until(under_way.is_set, 5.0, "the first piece")
    tasks.append(asyncio.create_task(of("loud", lambda: None)))
    await asyncio.sleep(0)
    with pytest.raises(Refusal) as refused:
        await of("loud", lambda: None)
    assert refused.value.reason == "LARGE_REQUESTS_EXCEEDED"
    may_end.set()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("is_sound", [True, False])
async def test_others_are_served_while_the_text_of_a_large_request_is_searched(shop: Shop, is_sound: bool) -> None:
    order = shop.messages.BuyRequest(shoe="clog")
    order.extras.update({"a": [1.5] * 50_000 + ["fine" if is_sound else "b\0"]})

    async def searched() -> list[str]:
        try:
            await search_nul(order, order.SerializeToString())
        except Refusal as refusal:
            return [each.field for each in refusal.violations]
        return []

    found, turns = await turns_during(searched())
    assert found == ([] if is_sound else ["extras.a[50000]"])
    assert turns > INLINE_TURNS
