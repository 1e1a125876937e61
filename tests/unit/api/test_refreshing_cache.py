"""A cached value is never older than it may be, is read once for all callers, and is gone when it is forgotten."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from services.api.app.authenticator import Authenticator
from services.api.app.key_material import KeyMint, key_hash, mint_key
from services.api.app.ports import KeyRecord
from services.api.app.refreshing_cache import RefreshingCache
from services.api.config import ApiSettings
from services.chassis.grpc.errors import Refusal
from services.chassis.identity.callers import CallerKind, Identity
from services.chassis.process.config import InvalidSettings
from tests.support.certificates import Authority
from tests.support.manual_clock import ManualClock


class Source:
    """A value that changes. A read takes until `is_open`."""

    def __init__(self) -> None:
        self.value = 1
        self.reads = 0
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.failure: Exception | None = None

    async def read(self, key: str) -> int:
        self.reads += 1
        value = self.value
        await self.is_open.wait()
        if self.failure is not None:
            raise self.failure
        return value


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def kept(source: Source, clock: ManualClock) -> RefreshingCache[str, int]:
    return RefreshingCache(source.read, clock, trusted_seconds=1.0, entries_max=3)


async def settled() -> None:
    """Returns when every ready task has run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_many_who_ask_at_once_cost_one_read(kept: RefreshingCache[str, int], source: Source) -> None:
    assert await asyncio.gather(*(kept.get("a") for _ in range(50))) == [1] * 50
    assert source.reads == 1


async def test_value_is_read_again_in_the_background_from_half_its_time_on(
    kept: RefreshingCache[str, int], source: Source, clock: ManualClock
) -> None:
    await kept.get("a")
    source.value = 2
    clock.advance(0.5)
    assert await kept.get("a") == 1
    assert source.reads == 1
    clock.advance(0.1)
    assert await kept.get("a") == 1  # this does not wait
    await settled()
    assert (await kept.get("a"), source.reads) == (2, 2)


async def test_value_that_is_too_old_is_not_given(
    kept: RefreshingCache[str, int], source: Source, clock: ManualClock
) -> None:
    await kept.get("a")
    source.value = 2
    clock.advance(1.1)
    assert await kept.get("a") == 2


async def test_time_counts_from_the_asking(kept: RefreshingCache[str, int], source: Source, clock: ManualClock) -> None:
    source.is_open.clear()
    asking = asyncio.create_task(kept.get("a"))
    await settled()
    clock.advance(2)
    source.is_open.set()
    assert await asking == 1
    source.value = 2
    assert await kept.get("a") == 2


async def test_value_that_is_forgotten_during_its_read_is_not_kept(
    kept: RefreshingCache[str, int], source: Source
) -> None:
    source.is_open.clear()
    early = asyncio.create_task(kept.get("a"))
    await settled()
    source.value = 2
    kept.forget("a")
    late = asyncio.create_task(kept.get("a"))
    await settled()
    source.is_open.set()
    assert (await early, await late, await kept.get("a")) == (1, 2, 2)


async def test_failure_reaches_those_who_wait_and_is_not_kept(kept: RefreshingCache[str, int], source: Source) -> None:
    source.failure = Refusal("KEY_INVALID", "no")
    for _ in range(2):
        with pytest.raises(Refusal):
            await kept.get("a")
    source.failure = None
    assert await kept.get("a") == 1


async def test_background_failure_is_nobodys_exception(
    kept: RefreshingCache[str, int], source: Source, clock: ManualClock
) -> None:
    await kept.get("a")
    clock.advance(0.6)
    source.failure = Refusal("KEY_INVALID", "no")
    assert await kept.get("a") == 1
    await settled()
    with pytest.raises(Refusal):
        await kept.get("a")


async def test_one_who_gives_up_does_not_take_it_from_the_others(
    kept: RefreshingCache[str, int], source: Source
) -> None:
    source.is_open.clear()
    first, second = asyncio.create_task(kept.get("a")), asyncio.create_task(kept.get("a"))
    await settled()
    first.cancel()
    source.is_open.set()
    assert await second == 1


async def test_number_of_entries_is_bounded(kept: RefreshingCache[str, int], source: Source) -> None:
    for key in "abcd":
        await kept.get(key)
    await kept.get("d")
    assert source.reads == 4
    await kept.get("a")
    assert source.reads == 5


async def test_only_what_is_meant_is_forgotten(kept: RefreshingCache[str, int], source: Source) -> None:
    await kept.get("a")
    await kept.get("b")
    kept.forget_where(lambda key: key == "a")
    await kept.get("b")
    assert source.reads == 2
    await kept.get("a")
    assert source.reads == 3


class MemoryKeys:
    def __init__(self, clock: ManualClock) -> None:
        self.records: dict[bytes, KeyRecord] = {}
        self._clock = clock

    def put(self, key: str, role: str, workspace: str, **changed: Any) -> None:
        record = KeyRecord(f"id of {key}", role, workspace, f"title of {key}", self._clock.now(), None, None, False)
        self.records[key_hash(key)] = record._replace(**changed)

    async def find(self, key_hash: bytes) -> KeyRecord | None:
        return self.records.get(key_hash)

    async def unused(self, *_: Any) -> Any:
        raise AssertionError("an authenticator only looks")

    add = page = revoke = unused


@pytest.fixture
def keys(clock: ManualClock) -> MemoryKeys:
    return MemoryKeys(clock)


@pytest.fixture
def authenticator(keys: MemoryKeys, clock: ManualClock) -> Authenticator:
    return Authenticator(keys, clock)


async def reason(authenticator: Authenticator, key: str) -> str:
    with pytest.raises(Refusal) as refused:
        await authenticator.identify(key)
    return refused.value.reason


@pytest.mark.parametrize(
    ("role", "workspace", "identity"),
    [
        ("ADMIN", "team", Identity(CallerKind.MEMBER, "id of k", "team", "ADMIN")),
        ("VIEWER", "team", Identity(CallerKind.MEMBER, "id of k", "team", "VIEWER")),
        ("SYSTEM", "", Identity(CallerKind.SYSTEM, "id of k")),
        ("RUNNER", "", Identity(CallerKind.RUNNER, "id of k")),
        ("RUNNER", "team", Identity(CallerKind.RUNNER, "id of k", "team")),
    ],
)
async def test_key_is_somebody(
    authenticator: Authenticator, keys: MemoryKeys, role: str, workspace: str, identity: Identity
) -> None:
    keys.put("k", role, workspace)
    assert await authenticator.identify("k") == identity._replace(title="title of k")


@pytest.mark.parametrize("key", ["", "unknown", "k" * 257, "\ud800", "K"])
async def test_key_is_nobodys(authenticator: Authenticator, keys: MemoryKeys, key: str) -> None:
    keys.put("k", "ADMIN", "team")
    assert await reason(authenticator, key) == "KEY_INVALID"


async def test_revoked_key_and_key_of_a_closed_workspace_are_nobodys(
    authenticator: Authenticator, keys: MemoryKeys, clock: ManualClock
) -> None:
    keys.put("revoked", "ADMIN", "team", revoke_time=clock.now())
    keys.put("closed", "ADMIN", "team", is_workspace_closed=True)
    assert await reason(authenticator, "revoked") == "KEY_INVALID"
    assert await reason(authenticator, "closed") == "KEY_INVALID"


async def test_key_expires_while_it_is_kept(authenticator: Authenticator, keys: MemoryKeys, clock: ManualClock) -> None:
    keys.put("k", "ADMIN", "team", expire_time=clock.now() + timedelta(seconds=0.2))
    await authenticator.identify("k")
    clock.advance(0.2)
    assert await reason(authenticator, "k") == "KEY_EXPIRED"
    assert await authenticator.record_of(key_hash("k")) is None


async def test_revoking_counts_at_once_when_heard_and_after_a_second_when_not(
    authenticator: Authenticator, keys: MemoryKeys, clock: ManualClock
) -> None:
    for heard in (True, False):
        keys.put("k", "ADMIN", "team")
        await authenticator.identify("k")
        keys.put("k", "ADMIN", "team", revoke_time=clock.now())
        if heard:
            authenticator.forget(key_hash("k"))
        else:
            clock.advance(1.01)
        assert await reason(authenticator, "k") == "KEY_INVALID"


def test_key_of_a_request_is_the_same_each_time_and_the_secrets_own() -> None:
    mint = KeyMint(b"secret")
    first = mint.mint("admin", "team", "r", "title")
    assert first == mint.mint("admin", "team", "r", "title")
    other_content = mint.mint("admin", "team", "r", "another title")
    assert (other_content.key_id, other_content.key) == (first.key_id, other_content.key)
    assert other_content.key != first.key
    others = [mint.mint("admin", "rival", "r", "title"), mint.mint("admin", "team", "s", "title")]
    others += [mint.mint("admin", "team", "", "title"), mint.mint("admin", "team", "", "title")]
    assert len({each.key for each in others} | {first.key}) == 5
    assert len({each.key_id for each in others} | {first.key_id}) == 5


def test_repeat_after_a_change_of_the_secret_has_the_same_id_and_another_key() -> None:
    """So it is refused, and no second key is made silently."""
    asked = ("admin", "team", "r", "title")
    before, after = KeyMint(b"secret").mint(*asked), KeyMint(b"other").mint(*asked)
    assert after.key_id == before.key_id
    assert after.key != before.key


def test_a_mint_goes_by_the_first_line_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("sixteen characters \nthe one before it\n")
    asked = ("admin", "team", "r", "title")
    assert KeyMint.from_file(file).mint(*asked) == KeyMint(b"sixteen characters").mint(*asked)
    for short in ("", "\n", "fifteen letters\n"):
        file.write_text(short)
        with pytest.raises(ValueError, match="fewer than 16"):
            KeyMint.from_file(file)


def test_with_certificates_a_mint_is_given_a_secret_of_its_own(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair("api")
    settings: dict[str, Any] = {
        "database_url": "postgresql://",
        "tls_certificate_file": pair.certificate_file,
        "tls_key_file": pair.key_file,
        "tls_authority_file": authority.file,
    }
    with pytest.raises(InvalidSettings, match="WINDLASS_KEY_SECRET_FILE is needed"):
        ApiSettings(**settings)
    assert ApiSettings(**settings, key_secret_file=tmp_path / "secret").key_secret_file


def test_minted_keys_are_long_and_different() -> None:
    minted = {mint_key("admin") for _ in range(100)}
    assert len(minted) == 100
    assert all(key.startswith("wl_admin_") and len(key) == len("wl_admin_") + 64 for key in minted)
