"""Migrates the schema of every service, for `windlass migrate` and `windlass up`.

The migrations of a service run as its own role, so that they can reach only what the service can.
"""

from collections.abc import Mapping
from importlib.resources import as_file, files

from deploy.local.provision import OWNERS
from services.chassis.postgres import migrations


async def migrate(urls: Mapping[str, str]) -> list[str]:
    """Apply what is missing and return its names. `urls` holds the address of each service's own role, by service."""
    applied: list[str] = []
    for service in OWNERS:
        with as_file(files(f"services.{service}") / "migrations") as directory:
            names = await migrations.apply(urls[service], service, directory)
            applied.extend(f"{service}/{name}" for name in names)
    return applied
