"""The rules of admission: which execution goes next, to which holder, and how a report changes a row.

There is no clock, randomness, I/O, logging, async or protobuf here; the present time arrives in the call.

Only the database decides whether a slot is free, under the workspace's row lock. The state kept in memory is a hint
about where to look: a wrong hint costs one look, never a slot.
"""
