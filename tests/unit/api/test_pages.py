"""A page holds as many rows as were asked for, or as clients take at once, and names the place of the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.api.core import paging
from services.api.rpc import pages
from windlass.api.v1 import resources_pb2

MEBIBYTE = 1024 * 1024


def page(sizes: list[int], size: int, after: int = -1) -> tuple[list[int], str]:
    """Numbers of the rows on the page that begins after one of them, as a list reads it: with one row more."""
    rows = list(range(after + 1, len(sizes)))[: size + 1]

    def show(row: int) -> resources_pb2.Run:
        made = resources_pb2.Run(iteration=row)
        made.output.string_value = "x" * sizes[row]
        return made

    shown, token = pages.cut(rows, size, str, show, "rows")
    return [each.iteration for each in shown], token


def walk(sizes: list[int], size: int) -> Iterator[list[int]]:
    after = -1
    while True:
        shown, token = page(sizes, size, after)
        yield shown
        if not token:
            return
        found = paging.read(token, "rows")
        assert isinstance(found, str)
        after = int(found)


@pytest.mark.parametrize(
    ("sizes", "size", "expected"),
    [
        ([], 2, [[]]),
        ([1] * 2, 2, [[0, 1]]),
        ([1] * 5, 2, [[0, 1], [2, 3], [4]]),
        ([MEBIBYTE] * 5, 50, [[0, 1], [2, 3], [4]]),
        ([1, 5 * MEBIBYTE, 1], 50, [[0], [1], [2]]),
    ],
    ids=["none", "all", "by number", "by bytes", "one that is too large alone"],
)
def test_every_row_is_on_one_page(sizes: list[int], size: int, expected: list[list[int]]) -> None:
    assert list(walk(sizes, size)) == expected
