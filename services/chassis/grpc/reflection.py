"""Server reflection under both names of its protocol, so that tools like grpcurl need no proto file.

It tells of the files that the described services and the details of refusals need, and of no other that this process
knows.

grpcio-reflection serves only v1alpha. v1 is the same protocol under another package name, so the implementation is
registered under both, and a descriptor of v1 is derived, so that v1 can describe itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"
V1: Final = "grpc.reflection.v1.ServerReflection"
METHOD: Final = "ServerReflectionInfo"


def handlers(services: Iterable[str]) -> dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]]:
    """Handlers by service name. They describe `services` and reflection itself."""
    _describe_v1()
    described = [*services, V1ALPHA, V1]
    servicer = reflection.aio.ReflectionServicer(described, pool=_Files(described))
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return {name: {METHOD: handler} for name in (V1ALPHA, V1)}


class _Files:
    """The files of the default pool that the services and the details of refusals are in, or need. It also finds
    `package.Service.Method`, as `grpcurl describe` expects."""

    def __init__(self, services: Iterable[str]) -> None:
        self._pool = descriptor_pool.Default()
        self._names: set[str] = set()
        for service in services:
            self._add(self._pool.FindServiceByName(service).file)
        self._add(error_details_pb2.DESCRIPTOR)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileByName(self, name: str) -> Any:
        return self._known(self._pool.FindFileByName(name))

    def FindFileContainingSymbol(self, symbol: str) -> Any:
        try:
            file = self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service_name, _, method = symbol.rpartition(".")
            service = self._pool.FindServiceByName(service_name)
            if method not in service.methods_by_name:
                raise
            file = service.file
        return self._known(file)

    def _add(self, file: Any) -> None:
        if file.name not in self._names:
            self._names.add(file.name)
            for needed in file.dependencies:
                self._add(needed)

    def _known(self, file: Any) -> Any:
        if file.name not in self._names:
            raise KeyError(file.name)
        return file


def _describe_v1() -> None:
    pool = descriptor_pool.Default()
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    # Every name in the file that says v1alpha is the name of a package or of the file itself.
    renamed = text_format.MessageToString(file).replace("v1alpha", "v1")
    file = text_format.Parse(renamed, descriptor_pb2.FileDescriptorProto())
    try:
        pool.FindFileByName(file.name)
    except KeyError:
        pool.AddSerializedFile(file.SerializeToString())
