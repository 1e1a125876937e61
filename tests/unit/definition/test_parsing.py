"""The text of a definition becomes JSON, with a line for every part, or faults that say where."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from windlass.definition.examination import examine_text
from windlass.definition.faults import place_of
from windlass.definition.limits import DEFINITION_BYTES_MAX, FAULTS_MAX
from windlass.definition.parsing import Format, parse
from windlass.definition.verdict import warnings_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "definitions.md"
TEXT = """\
# takes orders in
name: intake
nodes:
  - id: fetch
    module: http.request@1
    config:
      method: FETCH
      uri: "https://example.org"
  - {id: store, module: noop@1,
     config: {a.b: 1}}
edges:
  - from: fetch
    to: store
    when: two
"""


def faults_of(text: str, format_: Format = Format.YAML) -> list[tuple[str, str, str, int]]:
    found = examine_text(text, format_).faults
    return [(fault.path, fault.reason, fault.node, fault.line) for fault in found]


def test_every_fault_names_its_node_and_its_line() -> None:
    assert faults_of(TEXT) == [
        ("nodes[0].config.url", "REQUIRED", "fetch", 6),
        ("nodes[0].config.method", "UNKNOWN_VALUE", "fetch", 7),
        ("nodes[0].config.uri", "UNKNOWN_FIELD", "fetch", 8),
        ("nodes[1].config.a.b", "UNKNOWN_FIELD", "store", 10),
        ("edges[0].when", "UNKNOWN_BRANCH", "fetch", 14),
    ]


@pytest.mark.parametrize(
    ("node", "line", "place"),
    [("fetch", 6, "line 6, node fetch"), ("fetch", 0, "node fetch"), ("", 6, "line 6"), ("", 0, "")],
)
def test_a_place_is_told_in_words(node: str, line: int, place: str) -> None:
    assert place_of(node, line) == place


def test_yaml_and_json_of_one_meaning_are_one_version() -> None:
    document = {"name": "same", "initialState": {"a": 3, "b": [2.5, None, True, "2026-11-01"]}}
    written = 'initialState: {b: [2.5, ~, yes, 2026-11-01], "a": 3.0}\nname: &n same\n'
    as_json = json.dumps(document, indent=3)
    forms = {examine_text(written, Format.YAML).canonical, examine_text(as_json, Format.JSON).canonical}
    assert len(forms) == 1


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("", None),
        ("a: 1\nb: [x, 'y', \"z\"]\nc: {d: null}", {"a": 1, "b": ["x", "y", "z"], "c": {"d": None}}),
        ("a: 2026-11-01T00:00:00Z\n2026-11-01: =", {"a": "2026-11-01T00:00:00Z", "2026-11-01": "="}),
        ("a: 0x1f\nb: 1_000\nc: 1e3\nd: !!str 5", {"a": 31, "b": 1000, "c": "1e3", "d": "5"}),
        ("e: ! 7\nf: 1.0e+3\ng: !!null x", {"e": 7, "f": 1000, "g": None}),
        ("a: 12345678901234567890", {"a": 12345678901234567168.0}),
        ("a: &x [1, 2]\nb: *x", {"a": [1, 2], "b": [1, 2]}),
        ("- &k key\n- {*k : 1}", ["key", {"key": 1}]),
        ("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}\nc: {<<: [*x, {r: 4}]}\nd: [<<]",
         {"a": {"p": 1, "q": 2}, "b": {"q": 3, "p": 1}, "c": {"p": 1, "q": 2, "r": 4}, "d": ["<<"]}),
    ],
)  # fmt: skip
def test_yaml_is_read_as_the_json_in_it(text: str, document: Any) -> None:
    parsed = parse(text, Format.YAML)
    assert (parsed.document, parsed.faults) == (document, [])


@pytest.mark.parametrize(
    ("text", "path", "reason", "line"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "b.c", "DUPLICATE_KEY", 4),
        ("a: [x, {c: 1, c: 2}]", "a[1].c", "DUPLICATE_KEY", 1),
        ("a:\n  on: 1", "a.on", "NOT_JSON", 2),
        ("a: !!binary aGk=", "a", "NOT_JSON", 1),
        ("a: !!python/name:os.system x", "a", "NOT_JSON", 1),
        ("a: !!int x", "a", "NOT_JSON", 1),
        ("a: !!bool x", "a", "NOT_JSON", 1),
        (f"a: {'1' * 401}", "a", "NOT_JSON", 1),
        (f"a: {'1:' * 100_000}1", "a", "NOT_JSON", 1),
        ("a: 1\nb: *x", "", "SYNTAX", 2),
        ("a: &x [*x]", "a[0]", "SYNTAX", 1),
        ("a: &x {<<: *x}", "a.<<", "SYNTAX", 1),
        ("[" + "1," * 250_000 + "]", "", "TOO_LARGE", 1),
        ("a: &x" + " [" * 50 + "]" * 50 + "\nb:" + " [" * 50 + "*x" + "]" * 50, "b" + "[0]" * 59, "TOO_DEEP", 1),
        ("? [a]\n: 1", "", "NOT_JSON", 1),
        ("- &x [a]\n- *x : 1", "[1]", "NOT_JSON", 1),
        ("a: {<<: 5}", "a", "NOT_JSON", 1),
        ("a: 1\n--- \nb: 1", "", "SYNTAX", 2),
        ("a: 1\n b: 2", "", "SYNTAX", 2),
        ("a: \x07", "", "SYNTAX", 0),
        ("a: 1\nb: \x00", "", "NUL", 2),
        ("#" * (DEFINITION_BYTES_MAX + 1), "", "TOO_LARGE", 0),
    ],
)
def test_what_yaml_says_that_json_cannot_is_a_fault(text: str, path: str, reason: str, line: int) -> None:
    fault = parse(text, Format.YAML).faults[0]
    assert (fault.path, fault.reason, fault.line) == (path, reason, line)


@pytest.mark.parametrize(
    ("text", "path", "reason", "line"),
    [
        ('{"a": {"b": 1, "b": 1}}', "b", "DUPLICATE_KEY", 0),
        ('{"a": 1,\n "b": }', "", "SYNTAX", 2),
        ('{"a": NaN}', "", "SYNTAX", 1),
        ('{"a": "\\ud800"}', "", "SYNTAX", 1),
        ("[" * 100_000 + "]" * 100_000, "", "SYNTAX", 1),
        ("[" * 1_000 + "]" * 1_000, "", "TOO_DEEP", 0),
    ],
)
def test_what_is_no_json_is_a_fault(text: str, path: str, reason: str, line: int) -> None:
    fault = parse(text, Format.JSON).faults[0]
    assert (fault.path, fault.reason, fault.line) == (path, reason, line)


def test_json_has_no_lines() -> None:
    assert faults_of('{"name": "X"}', Format.JSON) == [("name", "MALFORMED_NAME", "", 0)]
    assert faults_of('[{"nodes[0]": 1, "nodes[0]": 1}]', Format.JSON) == [
        ("nodes[0]", "DUPLICATE_KEY", "", 0),
        ("", "WRONG_TYPE", "", 0),
    ]


def test_numbers_beyond_a_double_are_named_and_not_kept() -> None:
    for digits in ("9" * 350, "-" + "9" * 350):
        text = f'{{"name": "x", "initialState": {{"a": {digits}}}}}'
        assert faults_of(text) == [("initialState.a", "NOT_A_NUMBER", "", 1)]
        assert faults_of(text, Format.JSON) == [("", "SYNTAX", "", 1)]


def test_all_duplicates_are_told_beside_the_other_faults() -> None:
    text = "name: X\nname: Y\nnodes:\n  - id: a\n    id: a\n    module: noop\n"
    assert faults_of(text) == [
        ("name", "DUPLICATE_KEY", "", 2),
        ("name", "MALFORMED_NAME", "", 2),
        ("nodes[0].id", "DUPLICATE_KEY", "a", 5),
        ("nodes[0].module", "MODULE_VERSION_REQUIRED", "a", 6),
    ]


def test_there_are_faults_enough_at_some_time() -> None:
    assert len(parse("a: 1\n" * 3 * FAULTS_MAX, Format.YAML).faults) == FAULTS_MAX


def laughs(levels: int, merge: str = "") -> str:
    lines = ["a0: &a0 {k: lol}" if merge else "a0: &a0 [lol]"]
    for level in range(1, levels):
        used = ", ".join([f"*a{level - 1}"] * 10)
        value = f"{{<<: [{used}], k{level}: 1}}" if merge else f"[{used}]"
        lines.append(f"a{level}: &a{level} {value}")
    return "\n".join(lines)


@pytest.mark.parametrize("merge", ["", "merge"])
def test_aliases_cost_what_they_stand_for(merge: str) -> None:
    assert parse(laughs(4, merge), Format.YAML).faults == []
    (fault,) = parse(laughs(40, merge), Format.YAML).faults
    assert fault.reason == "TOO_LARGE"


@pytest.mark.parametrize("depth", [70, 1_000, 100_000])
def test_what_is_nested_without_end_is_one_fault(depth: int) -> None:
    text = "name: x\ninitialState: {a: " + "[" * depth + "]" * depth + "}"
    assert [reason for _, reason, *_ in faults_of(text)] == ["TOO_DEEP"]


def test_a_line_is_found_for_what_aliases_and_merges_stand_for() -> None:
    text = """\
name: x
nodes:
  - &a
    id: a
    module: noop@1
    config:
      x: 1
  - <<: *a
    id: b
"""
    assert faults_of(text) == [
        ("nodes[0].config.x", "UNKNOWN_FIELD", "a", 7),
        ("nodes[1].config.x", "UNKNOWN_FIELD", "b", 7),
    ]


def test_a_path_that_leads_nowhere_has_the_line_of_what_is_nearest() -> None:
    line_of = parse("a:\n  - b: 1\n", Format.YAML).line_of
    assert [line_of(path) for path in ("", "a", "a[0].b", "a[0].b.c", "a[7]", "a[x", "a.b", "z")] == [
        1, 1, 2, 2, 1, 1, 1, 1,
    ]  # fmt: skip


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufeff\ufffe\uffff"), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc.[]<= ~1", max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_yaml_that_was_written_reads_back(document: Any) -> None:
    for text, format_ in [
        (yaml.safe_dump(document, allow_unicode=True), Format.YAML),
        (json.dumps(document), Format.JSON),
    ]:
        parsed = parse(text, format_)
        assert parsed.faults == []
        assert parsed.document == document


@given(st.text(max_size=60) | st.text("ab:-[]{}&*<!#'\" \n,?|>", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for format_ in Format:
        parsed = parse(text, format_)
        assert all(fault.reason and fault.message for fault in parsed.faults)
        assert parsed.document != math.inf


def test_example_of_the_page_on_definitions_has_no_fault() -> None:
    example = re.search(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert example is not None
    verdict = examine_text(example[1], Format.YAML)
    assert (list(verdict.faults), list(warnings_of(verdict, ()))) == ([], [])
