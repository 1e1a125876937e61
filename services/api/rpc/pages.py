"""Pages of lists: reads the caller's page token, cuts the page, and makes the next token.

A token is the key of the last row that was shown, bound to the filter and order of its list. It is opaque to clients,
but not secret or signed, because the caller's key decides at every page what may be read. A token of another filter or
order is refused, because it would silently skip rows.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from google.protobuf.message import Message

from services.api.app.ports import PAGE_SIZE_MAX
from services.api.app.refusals import invalid_field
from services.chassis.grpc.errors import Refusal
from windlass.definition.json_values import canonical

T = TypeVar("T")
Shown = TypeVar("Shown", bound=Message)
PAGE_SIZE_DEFAULT: Final = 50
# By default gRPC clients refuse messages of more than 4 MiB.
PAGE_BYTES_MAX: Final = 3 * 1024 * 1024
_TOKEN_CHARACTERS_MAX: Final = 1_024


class PageRequest(Protocol):
    @property
    def page_size(self) -> int: ...

    @property
    def page_token(self) -> str: ...


class Page:
    """The page that a request asks for, in the list that `list_of` describes by its filter and order."""

    def __init__(self, request: PageRequest, *list_of: str) -> None:
        self._mark = hashlib.sha256(canonical(list(list_of))).hexdigest()[:16]
        # The largest number of rows.
        self.size = min(request.page_size, PAGE_SIZE_MAX) if request.page_size > 0 else PAGE_SIZE_DEFAULT
        # The key of the row after which the page begins ("" = at the start).
        self.after = self._read(request.page_token) if request.page_token else ""

    @property
    def after_number(self) -> int:
        """The key in a list whose keys are numbers. A made-up token that has no number begins at the start."""
        return int(self.after) if self.after.isascii() and self.after.isdigit() and len(self.after) < 19 else 0

    def cut(
        self, rows: Sequence[T], key: Callable[[T], str], show: Callable[[T], Shown], *, is_cut: bool = False
    ) -> tuple[list[Shown], str]:
        """The page, and the token of the next page, if there is one. `rows` has more rows than `size`, if they exist.

        A page of large rows is shorter, but has at least one row. `is_cut`: more rows exist, although fewer were given.
        """
        shown: list[Shown] = []
        room = PAGE_BYTES_MAX
        for row in rows[: self.size]:
            made = show(row)
            room -= made.ByteSize()
            if room < 0 and shown:
                is_cut = True
                break
            shown.append(made)
        # A peer returns at most PAGE_SIZE_MAX rows, so the largest page never has one row more, and the page after it
        # may be empty.
        has_more = is_cut or len(rows) > self.size or len(rows) >= PAGE_SIZE_MAX
        return shown, self.token(key(rows[len(shown) - 1])) if shown and has_more else ""

    def token(self, after: str) -> str:
        """Continues after the row with this key."""
        return base64.urlsafe_b64encode(canonical([self._mark, after])).rstrip(b"=").decode()

    def _read(self, token: str) -> str:
        content = None
        if len(token) <= _TOKEN_CHARACTERS_MAX:
            with contextlib.suppress(ValueError, RecursionError):
                content = json.loads(base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4)))
        match content:
            case [str(mark), str(after)] if mark == self._mark:
                return after
            case [str(), str()]:
                raise _bad_token("is a token of another list, filter or order")
            case _:
                raise _bad_token("is not a page token of this service; send next_page_token unchanged")


def _bad_token(message: str) -> Refusal:
    return invalid_field("page_token", "BAD_PAGE_TOKEN", message)
