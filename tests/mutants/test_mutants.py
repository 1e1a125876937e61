"""The tests are tested: each mutant is put into a copy of the tree, where the test that it names must fail."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.attacks import ATTACKS
from tests.mutants.changes import mutated
from tests.mutants.doors import DOORS
from tests.mutants.mutant import Mutant
from tests.mutants.mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("services", "deploy", "client", "protos", "tests", "pyproject.toml")
TEST_SECONDS = 90
# pytest's code for a failed test. Any other code is no verdict: no test was found, or the mutant does not import.
FAILED = 1


def found_test(name: str) -> str:
    """The id under which pytest finds the test of this name, which may be that of one case: `name[case]`."""
    function = name.partition("[")[0]
    found = [
        f"{path.relative_to(ROOT)}::{name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if re.search(rf"^(async )?def {function}\(", path.read_text(), re.MULTILINE)
    ]
    assert len(found) == 1, f"{name} is to be found once: {found}"
    return found[0]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_finds_its_place_and_its_test(mutant: Mutant) -> None:
    path, text = mutated(ROOT, mutant.folder, mutant.place, mutant.change)
    assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(path.read_text()))
    assert found_test(mutant.killed_by)


def test_each_attack_has_a_door_that_a_mutant_opens() -> None:
    assert DOORS.keys() == ATTACKS.keys()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the files that the tests need."""
    copy = tmp_path_factory.mktemp("mutants")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    yield copy
    shutil.rmtree(copy)


def run(tree: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """The copy comes before the installed tree, and bytecode of another mutant must not be taken for this one's."""
    paths = (tree, tree / "client", tree / "protos/gen")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, paths)), PYTHONDONTWRITEBYTECODE="1")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", *tests],
        cwd=tree,
        env=environment,
        text=True,
        capture_output=True,
        timeout=TEST_SECONDS * len(tests),
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(TEST_SECONDS * len(MUTANTS))
def test_without_a_mutant_every_named_test_passes(tree: Path) -> None:
    ended = run(tree, *sorted({found_test(mutant.killed_by) for mutant in MUTANTS}))
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.long
@pytest.mark.timeout(2 * TEST_SECONDS)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_named_test_kills_the_mutant(tree: Path, mutant: Mutant) -> None:
    path, text = mutated(tree, mutant.folder, mutant.place, mutant.change)
    sound = path.read_text()
    path.write_text(text)
    try:
        ended = run(tree, found_test(mutant.killed_by))
    finally:
        path.write_text(sound)
    assert ended.returncode == FAILED, f"{mutant.name} lives:\n{ended.stdout}{ended.stderr}"
