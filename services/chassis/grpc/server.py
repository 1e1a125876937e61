"""A gRPC server on which every method is behind the guard. Otherwise it does not start.

The generated `add_…Servicer_to_server` takes it like any other server, and it wraps the handlers as they are
registered. `start` adds health and reflection, which are open, and channelz, which needs the system key. It binds the
port, and the public port when there is one. Both lead to the same guard.

The options below avoid five hazards of the library:
- It accepts connections until the process has no file left, and waits two minutes for the first byte of each.
- gRPC buffers 4 MiB or more of each request that nobody reads, unless it is kept from measuring the bandwidth.
- When more than 1,000 RPCs are not accepted yet, further ones fail as CANCELLED, unless the pending limits are raised.
- Clients that ping more often than every five minutes get GOAWAY, unless that is permitted.
- A port that another process uses is silently shared (SO_REUSEPORT), unless that is switched off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import grpc
from grpc_channelz.v1 import channelz, channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2_grpc

from services.chassis.grpc import health, reflection
from services.chassis.grpc.guard import Guard, unknown_method
from services.chassis.grpc.health import HealthBoard
from services.chassis.grpc.limits import MEBIBYTE, PUBLIC, WINDOW_BYTES, ServerLimits
from services.chassis.identity.callers import Rule, anyone, system
from services.chassis.identity.tls import PublicAddress, Tls
from services.chassis.process.open_files import connections_that_fit

KEEPALIVE_PING_SECONDS_MIN: Final = 5

_CHANNELZ: Final = channelz_pb2.DESCRIPTOR.services_by_name["Channelz"]
_SEND_BYTES_MAX: Final = 64 * MEBIBYTE
_METADATA_BYTES_MAX: Final = 16 * 1024
_RPCS_PENDING_MAX: Final = 20_000
_OWN_RULES: Final[Mapping[str, Rule]] = {
    f"/{health.SERVICE_NAME}/Check": anyone(),
    f"/{health.SERVICE_NAME}/List": anyone(),
    # Load balancers watch for as long as they like. Their number is limited (ServerLimits.open_calls_max).
    f"/{health.SERVICE_NAME}/Watch": anyone().within(None),
    f"/{reflection.V1}/{reflection.METHOD}": anyone(),
    f"/{reflection.V1ALPHA}/{reflection.METHOD}": anyone(),
    **{f"/{_CHANNELZ.full_name}/{method.name}": system() for method in _CHANNELZ.methods},
}


def server_options(limits: ServerLimits, addresses: int = 1) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_allowed_incoming_connections", connections_that_fit(limits.connections_max, addresses)),
        ("grpc.max_connection_idle_ms", round(limits.idle_seconds * 1_000)),
        ("grpc.server_handshake_timeout_ms", round(limits.greeting_seconds * 1_000)),
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", limits.refuse_bytes_max),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.max_send_message_length", _SEND_BYTES_MAX),
        # Both limits are equal, because between the two gRPC refuses at random.
        ("grpc.max_metadata_size", _METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES_MAX),
        ("grpc.max_concurrent_streams", limits.connection_calls_max),
        # This would count calls that have ended and wait to be forgotten here, so that a client that keeps to the limit
        # would be refused.
        ("grpc.http.overload_protection", 0),
        ("grpc.server.max_pending_requests", _RPCS_PENDING_MAX),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _RPCS_PENDING_MAX),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_PING_SECONDS_MIN * 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        # The server's pings find clients that have vanished silently.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]


class _Handlers(grpc.GenericRpcHandler):
    """The handlers by full method name. A method that is not served is refused with a reason."""

    def __init__(self) -> None:
        self.by_method: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        method = handler_call_details.method
        return self.by_method.get(method) or unknown_method(method)


class GrpcServer(grpc.aio.Server):
    def __init__(
        self,
        address: str,
        *,
        guard: Guard,
        limits: ServerLimits = PUBLIC,
        tls: Tls | None = None,
        public: PublicAddress | None = None,
    ) -> None:
        self.health = HealthBoard()
        self._address = address
        self._public = public
        self._guard = guard.with_rules(_OWN_RULES, limits)
        self._request_bytes_max = limits.receive_bytes_max
        self._tls = tls
        self._handlers = _Handlers()
        self._services: list[str] = []
        self._announced: list[str] = []
        options = server_options(limits, 1 if public is None else 2)
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.rpcs_at_once_max)
        self._server.add_generic_rpc_handlers([self._handlers])

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Generated code calls this. It is the only way to register a method."""
        self._services.append(service_name)
        for name, handler in method_handlers.items():
            method = f"/{service_name}/{name}"
            guarded = self._guard.wrap(method, handler, request_bytes_max=self._request_bytes_max)
            self._handlers.by_method[method] = guarded

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Generated code registers the same handlers again in this older way. `start` compares the two."""
        for handler in generic_rpc_handlers:
            name = handler.service_name() if isinstance(handler, grpc.ServiceRpcHandler) else None
            self._announced.append(name or repr(handler))

    async def start(self) -> int:  # type: ignore[override]
        """Begin to serve, and return the bound port. Raises OSError when an address is taken."""
        self.health.announce(self._services)
        self._add_own_services()
        if unguarded := set(self._announced) - set(self._services):
            raise LookupError(f"registered in a way that cannot be guarded: {sorted(unguarded)}")
        port = self._bind(self._address, None if self._tls is None else self._tls.for_server())
        if self._public is not None:
            self._bind(self._public.address, self._public.credentials())
        await self._server.start()
        return port

    def _bind(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        try:
            if credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, credentials)
        except RuntimeError as failure:
            raise OSError(f"cannot listen on {address} (is the port taken?)") from failure

    def _add_own_services(self) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self)
        channelz_pb2_grpc.add_ChannelzServicer_to_server(channelz.aio.ChannelzServicer(), self)
        # What only our own processes may call is nobody else's business.
        described = [each for each in self._services if not self._guard.is_only_for_services(each)]
        for service, handlers in reflection.handlers(described).items():
            self.add_registered_method_handlers(service, handlers)

    async def check_keys(self) -> None:
        """For ever: end the long calls whose key is no longer valid."""
        await self._guard.check_keys()

    async def stop(self, grace: float | None) -> None:
        """Refuse new RPCs at once, and give `grace` seconds to those that are running."""
        self.health.close()
        await self._server.stop(grace)

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        return await self._server.wait_for_termination(timeout)

    def add_insecure_port(self, address: str) -> int:
        raise grpc.aio.UsageError("the address is given once, at construction")

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        raise grpc.aio.UsageError("the address is given once, at construction")
