"""The system key is known at a port whose service keeps no keys."""

from pathlib import Path

import pytest

from services.chassis.grpc.errors import Refusal
from services.chassis.identity.callers import ANONYMOUS, CallerKind, Identity, KeyReader
from services.chassis.identity.system_key import SystemKey, hash_of

SYSTEM = "wl_system_" + 64 * "5"
ADMIN = "wl_admin_" + 64 * "a"


@pytest.fixture
def hash_file(tmp_path: Path) -> Path:
    path = tmp_path / "system.key.sha256"
    path.write_text(hash_of(SYSTEM) + "\n")
    return path


async def test_system_key_is_known_by_its_hash(hash_file: Path) -> None:
    assert (await SystemKey(hash_file).identify(SYSTEM)).kind is CallerKind.SYSTEM


async def test_the_owner_of_any_other_key_has_no_rights(hash_file: Path) -> None:
    assert await SystemKey(hash_file).identify(ADMIN) == ANONYMOUS


@pytest.mark.parametrize("key", ["", "nobody", ADMIN + "a", ADMIN.upper(), SYSTEM[:-1] + "6", "\udcff"])
async def test_a_text_that_is_no_key_is_invalid(hash_file: Path, key: str) -> None:
    with pytest.raises(Refusal) as refusal:
        await SystemKey(hash_file).identify(key)
    assert refusal.value.reason == "KEY_INVALID"


async def test_nobody_is_the_operator_where_no_hash_is_known() -> None:
    for key in (SYSTEM, ""):
        with pytest.raises(Refusal):
            await SystemKey(None).identify(key)


async def test_other_keys_are_looked_up_where_they_are_known(hash_file: Path) -> None:
    class Others(KeyReader):
        async def identify(self, key: str) -> Identity:
            return Identity(CallerKind.RUNNER, key)

    keys = SystemKey(hash_file, Others())
    assert (await keys.identify(SYSTEM)).kind is CallerKind.SYSTEM
    assert (await keys.identify(ADMIN)).name == ADMIN
