"""Generates protos/gen from the .proto files.

    python protos/generate.py            write protos/gen anew
    python protos/generate.py --check    change nothing; exit 1 and name the files that differ from what is committed

grpcio-tools writes the messages and the services, mypy-protobuf their types. Both are pinned in pyproject.toml, because
generated code refuses a runtime that is older than itself. The result is committed as it is. The stubs are typed for
grpc.aio only, as every caller here is asynchronous.

Hazards: buf/validate is generated too, because protovalidate's wheel has no google.protobuf form of it. google/rpc and
google/api are not, because googleapis-common-protos installs them, and protobuf refuses two copies of one descriptor.
"""

import argparse
import filecmp
import importlib.resources
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROTOS = Path(__file__).resolve().parent
GENERATED = PROTOS / "gen"
VENDORED = (PROTOS / "vendored" / "googleapis", PROTOS / "vendored" / "protovalidate")
VALIDATE = PROTOS / "vendored" / "protovalidate" / "buf" / "validate" / "validate.proto"


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate protos/gen from the .proto files.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if protos/gen is not current")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory(prefix="windlass-protos-") as scratch:
        fresh = Path(scratch)
        generate(fresh)
        stale = differences(fresh, GENERATED)
        if check:
            return report(stale)
        bring_up_to_date(stale, fresh)
    return 0


def generate(target: Path) -> None:
    """Runs protoc over our contracts (with gRPC services) and over protovalidate's options (messages only)."""
    contracts = sorted((PROTOS / "windlass").rglob("*.proto"))
    messages = [f"--python_out={target}", f"--mypy_out=quiet:{target}"]
    services = [f"--grpc_python_out={target}", f"--mypy_grpc_out=quiet,only_async:{target}"]
    protoc([*messages, str(VALIDATE)])
    protoc([*messages, *services, *map(str, contracts)])
    prune(target)


def protoc(arguments: list[str]) -> None:
    """Runs grpcio-tools' protoc, which finds the mypy plugins beside this interpreter."""
    # protoc names a file relative to the first include that contains it, so the vendored folders come before PROTOS.
    includes = [*VENDORED, PROTOS, Path(str(importlib.resources.files("grpc_tools"))) / "_proto"]
    proto_paths = [f"--proto_path={path}" for path in includes]
    command = [sys.executable, "-m", "grpc_tools.protoc", *proto_paths, *arguments]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    subprocess.run(command, check=True, env={**os.environ, "PATH": path})


def prune(target: Path) -> None:
    """Removes the service files of protos without a service, which protoc writes all the same."""
    for stub in target.rglob("*_pb2_grpc.py"):
        if "class " not in stub.read_text():
            stub.unlink()
            stub.with_suffix(".pyi").unlink(missing_ok=True)


def differences(fresh: Path, committed: Path) -> list[str]:
    """The names of committed files that are missing, left over or different."""
    wanted, found = files_of(fresh), files_of(committed)
    changed = {name for name in wanted & found if not filecmp.cmp(fresh / name, committed / name, shallow=False)}
    return sorted((wanted ^ found) | changed)


def files_of(folder: Path) -> set[str]:
    """The generated files below a folder, relative to it."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*_pb2*.py*") if path.suffix in {".py", ".pyi"}}


def bring_up_to_date(stale: list[str], fresh: Path) -> None:
    """Touches only the files that differ, so that a process may import the others meanwhile."""
    for name in stale:
        if (fresh / name).exists():
            (GENERATED / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(fresh / name, GENERATED / name)
        else:
            (GENERATED / name).unlink()


def report(stale: list[str]) -> int:
    """Prints the files that are not current; returns the exit code."""
    if not stale:
        return 0
    print("protos/gen is not current; run `make protos` and commit the result:", *stale, sep="\n  ")
    return 1


if __name__ == "__main__":
    sys.exit(main())
