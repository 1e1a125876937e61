"""The table of the sessions of one hop. It belongs to the service, whose migration makes it."""

from sqlalchemy import Column, DateTime, MetaData, Table, Text
from sqlalchemy.dialects.postgresql import JSONB


def session_table(name: str, metadata: MetaData) -> Table:
    return Table(
        name,
        metadata,
        Column("instance_id", Text, primary_key=True),
        Column("holder", Text, nullable=False),
        Column("version", Text, nullable=False),
        # {"labels": {…}, "modules": […], "capacity": n}
        Column("labels", JSONB, nullable=False),
        # LIVE or ENDED.
        Column("state", Text, nullable=False),
        Column("lease_until", DateTime(timezone=True), nullable=False),
        Column("heard_time", DateTime(timezone=True), nullable=False),
        Column("open_time", DateTime(timezone=True), nullable=False),
        # A sweep saw first then that `lease_until` had passed; a beat clears it.
        Column("suspect_time", DateTime(timezone=True)),
        Column("ended_time", DateTime(timezone=True)),
        # Renewals touch no indexed column, and find room in their page.
        postgresql_with={"fillfactor": 50},
    )
