"""What the pages name is there: the files and headings that they link to, and the files that they name."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
# A path of this tree between backticks, like `services/api/app/starts.py`.
_NAMED = re.compile(r"`((?:services|client|deploy|docs|examples|protos|tests|benchmarks)/[\w./-]+)`")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def pages() -> list[Path]:
    known = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in known.stdout.split()]


def anchors_of(page: Path) -> set[str]:
    """As GitHub names headings: in lower case, without signs, with hyphens for spaces."""
    text = _FENCED.sub("", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


def dead_links(page: Path) -> Iterator[str]:
    for link in _LINK.findall(_FENCED.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            yield link


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages()])
def test_a_page_has_no_dead_link_and_names_no_file_that_is_not_there(page: Path) -> None:
    assert list(dead_links(page)) == []
    assert [path for path in _NAMED.findall(page.read_text()) if not (ROOT / path).exists()] == []


def test_links_and_files_are_found_at_all(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `head-ing`, (so)\n[a](page.md#a-head-ing-so) [b](#no) [c](no.md)\n```\n[d](no.md)\n```\n")
    assert list(dead_links(page)) == ["#no", "no.md"]
    assert sum(len(_NAMED.findall(page.read_text())) for page in pages()) > 100
