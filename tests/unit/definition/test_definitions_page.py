"""docs/definitions.md names the fields that the code knows, and each module has a section with an example."""

import re
from pathlib import Path
from typing import Any

import pytest

from windlass.definition.config_schemas import CONFIG_SCHEMAS
from windlass.definition.fields import EDGE, NODE, WORKFLOW

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "definitions.md").read_text()
# The text below each heading, up to the next one.
SECTIONS = dict(re.findall(r"^##+ (.+)\n((?:(?!##+ ).*\n)*)", PAGE, re.MULTILINE))


def table_of(section: str, first: str) -> dict[str, str]:
    """The fields of the table whose first column has this head, with their defaults."""
    rows = re.search(rf"^\| {re.escape(first)} \| meaning \| default \|\n\|.*\n((?:\|.*\n)*)", section, re.MULTILINE)
    return dict(re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", rows[1], re.MULTILINE)) if rows else {}


def required_in(table: dict[str, str]) -> set[str]:
    return {field for field, default in table.items() if default == "required"}


@pytest.mark.parametrize(
    ("section", "schema"),
    [("Fields of a definition", WORKFLOW), ("Nodes", NODE), ("Edges", EDGE), ("Retries", NODE["properties"]["retry"])],
)
def test_the_table_has_every_field(section: str, schema: dict[str, Any]) -> None:
    table = table_of(SECTIONS[section], "field")
    assert set(table) == set(schema["properties"])
    # What a module's name may be is checked by code, and not by the schema.
    assert required_in(table) - {"module"} == set(schema["required"])


@pytest.mark.parametrize("module", sorted(CONFIG_SCHEMAS))
def test_the_section_of_a_module_has_its_config_and_an_example(module: str) -> None:
    section, schema = SECTIONS[module], CONFIG_SCHEMAS[module]
    table = table_of(section, "`config`")
    assert set(table) == set(schema["properties"])
    assert required_in(table) == set(schema["required"])
    assert f"module: {module}" in section
    assert "# ends as " in section
