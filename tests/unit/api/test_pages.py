"""A page has as many rows as were asked for, or as clients take at once, and a token for the next page."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.app.ports import PAGE_SIZE_MAX
from services.api.rpc.pages import Page
from services.chassis.grpc.errors import Refusal
from windlass.api.v1 import resources_pb2
from windlass.api.v1.runs_pb2 import ListRunsRequest

MEBIBYTE = 1024 * 1024


def page(sizes: list[int], size: int, after: int = -1) -> tuple[list[int], str]:
    """The numbers of the rows on the page after this row. The list is read with one row more."""
    rows = list(range(after + 1, len(sizes)))[: size + 1]

    def show(row: int) -> resources_pb2.Run:
        made = resources_pb2.Run(iteration=row)
        made.output.string_value = "x" * sizes[row]
        return made

    shown, token = Page(ListRunsRequest(page_size=size), "rows").cut(rows, str, show)
    return [each.iteration for each in shown], token


def walk(sizes: list[int], size: int) -> Iterator[list[int]]:
    after = -1
    while True:
        shown, token = page(sizes, size, after)
        yield shown
        if not token:
            return
        after = Page(ListRunsRequest(page_token=token), "rows").after_number


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


@given(st.text(max_size=40), st.lists(st.text(max_size=20), max_size=4))
def test_token_gives_back_the_place(after: str, list_of: list[str]) -> None:
    token = Page(ListRunsRequest(), *list_of).token(after)
    assert Page(ListRunsRequest(page_token=token), *list_of).after == after
    assert Page(ListRunsRequest(), *list_of).after == ""


@pytest.mark.parametrize(
    ("token", "fault"),
    [
        *((text, "is not a page token") for text in ("%%%", "abc", "WyJhIl0", "x" * 2000, "🙂", "W10", "MQ", "AAAA")),
        (Page(ListRunsRequest(), "executions", "state = FAILED").token("place"), "another list"),
    ],
)
def test_other_token_is_refused(token: str, fault: str) -> None:
    with pytest.raises(Refusal) as refused:
        Page(ListRunsRequest(page_token=token), "executions", "state = SUCCESS")
    assert [each.reason for each in refused.value.violations] == ["BAD_PAGE_TOKEN"]
    assert fault in refused.value.message


@pytest.mark.parametrize("content", ['["{}", 5]', '["{}", null]', '["{}", ["place"]]', '{{"{}": 1, "place": 2}}'])
def test_token_of_the_list_without_a_place_is_refused(content: str) -> None:
    mark = json.loads(base64.urlsafe_b64decode(Page(ListRunsRequest(), "runs").token("") + "=="))[0]
    token = base64.urlsafe_b64encode(content.format(mark).encode()).decode()
    with pytest.raises(Refusal, match="is not a page token"):
        Page(ListRunsRequest(page_token=token), "runs")


@pytest.mark.parametrize(("asked", "size"), [(0, 50), (1, 1), (1000, 1000), (5000, PAGE_SIZE_MAX)])
def test_page_has_a_size(asked: int, size: int) -> None:
    assert Page(ListRunsRequest(page_size=asked), "rows").size == size
