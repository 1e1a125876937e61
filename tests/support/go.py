"""Builds programs of others from the Go module proxy, if Go is installed, and keeps them under .tools/go/bin.

Hazard: the first build takes minutes of both cores. It has the lowest priority, so that other processes go on.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

BINARIES = Path(__file__).resolve().parents[2] / ".tools/go/bin"
BUILD_SECONDS = 3_600
ROOT = Path(__file__).resolve().parents[2]
GO_RUNNER = ROOT / "examples/runner-go"
# The version of the first is that of google.golang.org/protobuf in the runner's go.mod.
PLUGINS = (
    "google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.10",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.5.1",
)


def grpcurl() -> Path:
    return _found("grpcurl") or _built("grpcurl", _install_grpcurl)


def jaeger() -> Path:
    """Version 2 of Jaeger. `go install` cannot build it, because its module replaces others."""
    return _found("jaeger") or _built("jaeger", _build_jaeger)


def go_runner() -> Path:
    """The runner of examples/runner-go, always built anew: Go keeps what has not changed."""
    if shutil.which("go") is None:
        pytest.skip("no Go to build it with")
    BINARIES.mkdir(parents=True, exist_ok=True)
    for plugin in PLUGINS:
        if not (BINARIES / Path(plugin.partition("@")[0]).name).exists():
            _go("install", plugin)
    found = os.pathsep.join([str(BINARIES), str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(["buf", "generate"], cwd=ROOT, env={**os.environ, "PATH": found}, timeout=BUILD_SECONDS, check=True)
    return built_runner(GO_RUNNER, BINARIES / "runner-go")


def built_runner(source: Path, program: Path) -> Path:
    """Build a runner whose generated code is there."""
    _go("build", "-o", str(program), ".", directory=source)
    return program


def vet(source: Path) -> str:
    """What gofmt and `go vet` have to say; "" if nothing."""
    _go("vet", ".", directory=source)
    files = [path.name for path in source.glob("*.go")]
    return subprocess.run(["gofmt", "-l", *files], cwd=source, capture_output=True, text=True, check=True).stdout


def _found(name: str) -> Path | None:
    kept = BINARIES / name
    if kept.exists():
        return kept
    elsewhere = shutil.which(name)
    return Path(elsewhere) if elsewhere else None


def _built(name: str, build: Callable[[], None]) -> Path:
    if shutil.which("go") is None:
        pytest.skip(f"no {name} here, and no Go to build it with")
    BINARIES.mkdir(parents=True, exist_ok=True)
    build()
    return BINARIES / name


def _install_grpcurl() -> None:
    _go("install", "github.com/fullstorydev/grpcurl/cmd/grpcurl@latest")


def _build_jaeger() -> None:
    module = json.loads(_go("mod", "download", "-json", "github.com/jaegertracing/jaeger@v1.76.0"))
    with tempfile.TemporaryDirectory(prefix="windlass-jaeger-") as directory:
        # The module cache is read-only, and Go builds in a main module only.
        source = Path(directory) / "source"
        shutil.copytree(module["Dir"], source, copy_function=shutil.copyfile)
        part = BINARIES / "jaeger.part"
        _go("build", "-o", str(part), "./cmd/jaeger", directory=source)
        part.rename(BINARIES / "jaeger")


def _go(*arguments: str, directory: Path | None = None) -> str:
    environment = {**os.environ, "GOBIN": str(BINARIES), "GOFLAGS": "-buildvcs=false"}
    done = subprocess.run(
        ["nice", "-n", "19", "go", *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    return done.stdout
