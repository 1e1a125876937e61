"""Bring every service's schema to the version that this tree knows; `windlass migrate` and `windlass up` do
it here.

Each service's migrations run as that service's own role, in its own schema: a migration cannot reach what its
service could not.
"""

from collections.abc import Mapping
from importlib.resources import as_file, files

from deploy.local.provision import OWNERS
from services.chassis.postgres import migrations


async def migrate(urls: Mapping[str, str]) -> list[str]:
    """The names of what was applied. `urls` by service; each must be that of the service's own role."""
    applied: list[str] = []
    for service in OWNERS:
        with as_file(files(f"services.{service}") / "migrations") as directory:
            names = await migrations.apply(urls[service], service, directory)
            applied.extend(f"{service}/{name}" for name in names)
    return applied
