"""Pages of lists: reads the caller's page token, cuts the page, and makes the next token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from google.protobuf.message import Message

from services.api.app.refusals import invalid_field
from services.api.core import paging

Row = TypeVar("Row")
Shown = TypeVar("Shown", bound=Message)
# By default gRPC clients refuse messages of more than 4 MiB.
PAGE_BYTES_MAX: Final = 3 * 1024 * 1024


class PageRequest(Protocol):
    @property
    def page_size(self) -> int: ...

    @property
    def page_token(self) -> str: ...


def begin(request: PageRequest, *list_of: str) -> tuple[str, int]:
    """The row after which the page begins ("" = at the start), and the largest number of rows."""
    after = paging.read(request.page_token, *list_of)
    if isinstance(after, paging.BadToken):
        raise invalid_field("page_token", "BAD_PAGE_TOKEN", after.message)
    return after, paging.size_of(request.page_size)


def cut(
    rows: Sequence[Row],
    size: int,
    key: Callable[[Row], str],
    show: Callable[[Row], Shown],
    *list_of: str,
    is_cut: bool = False,
) -> tuple[list[Shown], str]:
    """The page, and the token of the next page, if there is one. `rows` has one row more than `size`, if it exists.

    A page of large rows is shorter, but has at least one row. `is_cut`: more rows exist, although fewer were given.
    """
    shown: list[Shown] = []
    room = PAGE_BYTES_MAX
    for row in rows[:size]:
        made = show(row)
        room -= made.ByteSize()
        if room < 0 and shown:
            is_cut = True
            break
        shown.append(made)
    if not shown or not (is_cut or _has_more(len(rows), size)):
        return shown, ""
    return shown, paging.token(key(rows[len(shown) - 1]), *list_of)


def _has_more(found: int, size: int) -> bool:
    """Whether there may be another page. A peer returns at most PAGE_SIZE_MAX rows, so the largest page never has one
    row more: its next page may be empty."""
    return found > size or found >= paging.PAGE_SIZE_MAX


def number(after: str) -> int:
    """The key of a list whose keys are numbers. A made-up token that has no number begins at the start."""
    return int(after) if after.isascii() and after.isdigit() and len(after) < 19 else 0
