"""Pages of lists: the token a caller brings, and the one that goes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from google.protobuf.message import Message

from services.api.app.refusals import invalid_field
from services.api.core import paging

Row = TypeVar("Row")
Shown = TypeVar("Shown", bound=Message)
# Clients of gRPC take 4 MiB at once unless they are told otherwise.
PAGE_BYTES_MAX: Final = 3 * 1024 * 1024


class PageRequest(Protocol):
    @property
    def page_size(self) -> int: ...

    @property
    def page_token(self) -> str: ...


def begin(request: PageRequest, *list_of: str) -> tuple[str, int]:
    """After which row the page begins ("": at the start), and how many rows it has at most."""
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
    """What is shown of at most `size` of the rows, of which one more was asked for, and the token of the next page, if
    there is one. A page is shorter when its rows are large, and has one at least. `is_cut`: whoever gave the rows says
    that there is more, however few came.
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
    """Whether there may be another page. No peer gives more rows at once than the largest page has, so the one more
    that was asked for cannot come with that: the next page is then empty at worst."""
    return found > size or found >= paging.PAGE_SIZE_MAX


def number(after: str) -> int:
    """Of a list whose key is a number; a token is anybody's to make up, so what is none begins at the start."""
    return int(after) if after.isascii() and after.isdigit() and len(after) < 19 else 0
