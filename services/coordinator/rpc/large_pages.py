"""Pages of lists. A page of rows that may be large ends where its records reach a size.

A row is read only when its turn comes, some at once. So a page of a thousand large rows costs neither more memory than
one part of it, nor a message that its caller refuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from services.coordinator.app.ports import Row

ROWS_MAX: Final = 1_000
Name = TypeVar("Name")
Record = TypeVar("Record", bound=Message)
# Api shows at most 3 MiB of a page, because clients refuse more than 4 MiB by default.
PAGE_BYTES_MAX: Final = 3 * 1024 * 1024
# The summary of an execution with 2,000 nodes, or an approval with a form, has some 128 KiB.
ROWS_PER_READ: Final = 100


def limit_of(asked: int) -> int:
    """The number of rows that a page may have. 0: the caller did not ask for fewer than there may be."""
    return min(ROWS_MAX, asked) if asked > 0 else ROWS_MAX


class LargePage(NamedTuple, Generic[Record]):
    records: list[Record]
    # There are more, although fewer were asked for.
    is_cut: bool = False


async def page_of(
    names: Sequence[Name],
    read: Callable[[Sequence[Name]], Awaitable[Sequence[Row]]],
    record_of: Callable[[Row], Record],
    *,
    bytes_max: int | None,
) -> LargePage[Record]:
    """The records of these rows, in their order: as many as have `bytes_max` together, but at least one. None: all."""
    records: list[Record] = []
    size_bytes = 0
    for first in range(0, len(names), ROWS_PER_READ):
        for row in await read(names[first : first + ROWS_PER_READ]):
            record = record_of(row)
            size_bytes += record.ByteSize()
            if bytes_max is not None and size_bytes > bytes_max and records:
                return LargePage(records, is_cut=True)
            records.append(record)
    return LargePage(records)
