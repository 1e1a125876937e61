"""The table of the sessions of one hop. It belongs to the service, whose migration makes it."""

from sqlalchemy import MetaData, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

from services.chassis.postgres.columns import TIME, key, needed, optional


def session_table(name: str, metadata: MetaData) -> Table:
    return Table(
        name,
        metadata,
        *key(Text, "instance_id"),
        # `opened_by` is the caller whose instance it is: nobody else can attach under its id. `state` is LIVE or ENDED.
        *needed(Text, "opened_by holder version state"),
        # {"labels": {…}, "modules": […], "capacity": n}
        *needed(JSONB, "labels"),
        *needed(TIME, "lease_until heard_time open_time"),
        # `suspect_time`: when a sweep first saw that `lease_until` had passed; a beat clears it.
        *optional(TIME, "suspect_time ended_time"),
        # Renewals touch no indexed column, and find room in their page.
        postgresql_with={"fillfactor": 50},
    )
