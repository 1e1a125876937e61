"""Peers come from lists, from files that change, and from names."""

import asyncio
from pathlib import Path

import pytest

from services.chassis.grpc.addresses import AddressBook, split_address


async def test_a_list_of_addresses_never_changes() -> None:
    book = AddressBook("127.0.0.1:1, [::1]:2")
    assert await book.read() == {"127.0.0.1:1", "[::1]:2"}
    assert await AddressBook("").read() == frozenset()
    changes = book.changes()
    assert await anext(changes) == {"127.0.0.1:1", "[::1]:2"}
    following = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    assert not following.done()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "peers"
    file.write_text("a:1\nb:2  # the second\n")
    changes = AddressBook(f"@{file}", poll_seconds=0.001).changes()
    assert await anext(changes) == {"a:1", "b:2"}
    file.write_text("b:2,c:3")
    assert await anext(changes) == {"b:2", "c:3"}


async def test_a_file_that_is_gone_or_broken_keeps_its_last_answer(tmp_path: Path) -> None:
    file = tmp_path / "peers"
    book = AddressBook(f"@{file}")
    assert await book.read() == frozenset()
    file.write_text("a:1")
    assert await book.read() == {"a:1"}
    file.write_text("no address")
    assert await book.read() == {"a:1"}
    file.unlink()
    assert await book.read() == {"a:1"}
    file.write_text("")
    assert await book.read() == frozenset()


async def test_every_address_behind_a_name_is_a_peer() -> None:
    found = await AddressBook("dns:localhost:7402").read()
    assert found <= {"127.0.0.1:7402", "[::1]:7402"}
    assert found


async def test_a_name_that_cannot_be_resolved_has_no_peers_yet() -> None:
    assert await AddressBook("dns:nowhere.invalid:1").read() == frozenset()


@pytest.mark.parametrize("wrong", ["host", "host:", "host:x"])
def test_a_text_that_is_no_address_is_refused_at_once(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        AddressBook(wrong)


def test_addresses_split_into_host_and_port() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address(":80") == ("0.0.0.0", 80)
