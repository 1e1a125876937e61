"""Builds programs of others from the Go module proxy, if Go is installed, and keeps them under .tools/go/bin.

Hazard: the first build takes minutes of both cores. It has the lowest priority, so that other processes go on.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

BINARIES = Path(__file__).resolve().parents[2] / ".tools/go/bin"
BUILD_SECONDS = 3_600


def grpcurl() -> Path:
    return _found("grpcurl") or _built("grpcurl", _install_grpcurl)


def jaeger() -> Path:
    """Version 2 of Jaeger. `go install` cannot build it, because its module replaces others."""
    return _found("jaeger") or _built("jaeger", _build_jaeger)


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
