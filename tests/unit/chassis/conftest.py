"""A shop that sells shoes, served on the chassis; compiled from the shop.proto beside this file."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

_HERE = Path(__file__).parent
_VENDORED = _HERE.parents[2] / "protos" / "vendored" / "protovalidate"


class Shop:
    """The generated modules of shop.proto."""

    def __init__(self, messages: ModuleType, services: ModuleType) -> None:
        self.messages = messages
        self.services = services


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    from grpc_tools import protoc

    target = tmp_path_factory.mktemp("shop")
    arguments = [f"-I{_HERE}", f"-I{_VENDORED}", f"-I{_well_known()}"]
    outputs = [f"--python_out={target}", f"--grpc_python_out={target}"]
    assert protoc.main(["protoc", *arguments, *outputs, str(_HERE / "shop.proto")]) == 0
    sys.path.insert(0, str(target))
    try:
        yield Shop(importlib.import_module("shop_pb2"), importlib.import_module("shop_pb2_grpc"))
    finally:
        sys.path.remove(str(target))


def _well_known() -> Path:
    import grpc_tools

    return Path(grpc_tools.__path__[0]) / "_proto"
