"""The guard before every handler: it identifies the caller, checks its rights and its request, and maps the outcome.

There is one wrapper per method, made when the method is registered. A chain of interceptors, which gRPC makes again for
each call, costs a unary call several times as much. Order matters: the caller is identified before the request is read,
so that nobody without a key learns what a well-formed request is, and its call is counted before anything of it is read
(open_calls.py, receiving.py). Before a request is parsed, and before an answer is sent, room is taken for it
(held_messages.py). Errors are mapped outermost, so that no internal text gets out.

Every handler is registered for a stream of requests, also when it reads only one. gRPC calls other handlers when their
request has arrived; a stranger who never sends it could then hold calls of every method without a key.

Hazard: cancellation (the caller has gone) passes through unchanged; it is no failure of the handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeAlias

import grpc

from services.chassis.grpc.aborting import abort, strip
from services.chassis.grpc.errors import Refusal, status_code, status_of
from services.chassis.grpc.held_messages import HeldMessages, held_by_answer, held_by_request
from services.chassis.grpc.limits import PUBLIC, SMALL_BYTES_MAX, ServerLimits
from services.chassis.grpc.long_calls import LongCalls
from services.chassis.grpc.open_calls import OpenCalls, address_of
from services.chassis.grpc.receiving import Receiving
from services.chassis.grpc.validation import decode, prepare, search_nul, validate
from services.chassis.identity import callers
from services.chassis.identity.callers import CallerKind, Identity, Rule
from services.chassis.process.naming import SERVICE_CREDENTIAL_KEY
from services.chassis.telemetry import tracing
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter, gauge, histogram

log = logger(__name__)

RpcCall: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = Callable[[Any, RpcCall], Coroutine[Any, Any, Any]]
# Reads the next message of a call, or EOF.
ReadRequest: TypeAlias = Callable[[RpcCall], Awaitable[Any]]
# Runs a call of the caller with this key, if it has one.
RunCall: TypeAlias = Callable[[Any, RpcCall, str | None], Coroutine[Any, Any, Any]]
_BEARER: Final = "bearer "
# The key of a call that may take longer than this is checked again while it lasts.
LONG_SECONDS: Final = 30.0

_handled = counter("grpc_server_handled_total", "Finished RPCs.", ["method", "code"])
_seconds = histogram("grpc_server_handling_seconds", "Duration of RPCs.", ["method"])
_streams = gauge("grpc_server_streams", "Streams that are open.", ["method"])


@functools.cache
def _handled_with(method: str, code: str) -> Any:
    """The counter of these calls, which is looked up once."""
    return _handled.labels(method, code)


class Guard:
    def __init__(
        self,
        rules: Mapping[str, Rule],
        *,
        keys: callers.KeyReader | None = None,
        credential: callers.ServiceCredential | None = None,
        sampler: tracing.Sampler | None = None,
        limits: ServerLimits = PUBLIC,
    ) -> None:
        self._rules = dict(rules)
        self._keys = keys
        self._credential = credential
        self._sampler = sampler
        self._open_calls = OpenCalls(limits)
        self._open_requests = Receiving(
            slow_seconds=limits.open_slow_seconds,
            seconds_max=limits.open_receive_seconds,
            places=limits.open_arriving_bytes_max // limits.refuse_bytes_max,
        )
        self._key_requests = Receiving(
            slow_seconds=limits.key_slow_seconds,
            seconds_max=limits.key_receive_seconds,
            places=limits.key_arriving_bytes_max // limits.refuse_bytes_max,
        )
        self._held_requests = HeldMessages(
            limits.key_held_bytes_max, "LARGE_REQUESTS_EXCEEDED", "large requests that are being served"
        )
        self._held_answers = HeldMessages(
            limits.key_answers_bytes_max, "LARGE_ANSWERS_EXCEEDED", "large answers that wait to be read"
        )
        self._long_calls = LongCalls()

    async def check_keys(self) -> None:
        """For ever: end the long calls whose key is no longer valid."""
        assert self._keys is not None
        await self._long_calls.check_keys(self._keys)

    def is_only_for_services(self, service: str) -> bool:
        """No key opens any method of this service."""
        rules = [rule for method, rule in self._rules.items() if method.startswith(f"/{service}/")]
        return all(rule.is_only_for_services for rule in rules)

    def with_rules(self, rules: Mapping[str, Rule], limits: ServerLimits) -> Guard:
        """The same guard with rules for further methods, and with the limits of its server."""
        return Guard(
            {**self._rules, **rules}, keys=self._keys, credential=self._credential, sampler=self._sampler, limits=limits
        )

    def wrap(
        self, method: str, handler: grpc.RpcMethodHandler[Any, Any], *, request_bytes_max: int
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The same handler behind this guard."""
        rule = self._rules.get(method)
        if rule is None:
            raise LookupError(f"{method} has no rule: say who may call it, or do not serve it")
        behaviour: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        if not (inspect.iscoroutinefunction(behaviour) or inspect.isasyncgenfunction(behaviour)):
            raise TypeError(f"{method} is not implemented: its servicer method is not async")
        assert handler.request_deserializer is not None
        kind = getattr(handler.request_deserializer, "__self__", None)
        if not handler.request_streaming and kind is not None:
            prepare(kind.DESCRIPTOR)
        decoded = functools.partial(
            decode,
            handler.request_deserializer,
            _bytes_max(rule, request_bytes_max),
            # The text of a single request is searched once it has been read (search_nul).
            refuses_nul=handler.request_streaming and not rule.judges_text,
            items_max=rule.items_max,
        )
        read = self._reader(method, rule)
        serialize = handler.response_serializer
        finish: Callable[[Any], Any] = _unchanged
        if handler.request_streaming:
            work = _work_on_stream(behaviour, read)
        elif rule.is_open:
            # Its messages are small.
            work = _work(_streaming(behaviour), decoded, read, rule, hold=_unchanged)
        else:
            assert serialize is not None
            if handler.response_streaming:
                if not inspect.isasyncgenfunction(behaviour):
                    raise TypeError(f"{method} writes its answers itself: it has to yield them")
                behaviour = self._writing(behaviour, serialize)
            else:
                finish = self._answering(serialize)
            long_calls = self._long_calls if rule.seconds_max is None or rule.seconds_max > LONG_SECONDS else None
            work = _work(behaviour, decoded, read, rule, hold=self._hold_request, long_calls=long_calls)
            # The answers are bytes already, so that their size is known.
            serialize = None
        is_unary = not (handler.request_streaming or handler.response_streaming)
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(
            self._guarded(method, work, rule, finish, is_unary=is_unary),
            request_deserializer=decoded if handler.request_streaming else None,
            response_serializer=serialize,
        )

    def _answering(self, serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        """The bytes of a single answer, for which room is taken."""

        def finish(answer: Any) -> bytes:
            raw = serialize(answer)
            self._held_answers.hold(held_by_answer(raw))
            return raw

        return finish

    def _writing(self, behaviour: Any, serialize: Callable[[Any], bytes]) -> Handler:
        """Runs a handler that yields its answers, and writes them."""

        async def write_all(request: Any, context: RpcCall) -> None:
            who = callers.caller()
            # The generator is closed as soon as the caller goes, not when it is collected.
            async with contextlib.aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    raw = serialize(response)
                    del response
                    if who.kind is CallerKind.SERVICE:
                        await context.write(raw)
                    else:
                        with self._held_answers.held(held_by_answer(raw), who.tenant):
                            await context.write(raw)

        return write_all

    def _guarded(
        self, method: str, work: RunCall, rule: Rule, finish: Callable[[Any], Any], *, is_unary: bool
    ) -> Handler:
        seconds, streams = _seconds.labels(method), _streams.labels(method)

        async def call(requests: Any, context: RpcCall) -> Any:
            code, served = "OK", None
            late: asyncio.Task[Any] | None = None
            start = time.perf_counter()
            if not is_unary:
                streams.inc()
            try:
                try:
                    served, key = await self._admit(context, method, rule)
                    if _has_time(context, rule.seconds_max):
                        return finish(await work(requests, context, key))
                    late = asyncio.create_task(work(requests, context, key))
                    return finish(await _within(late, rule.seconds_max))
                except grpc.aio.AbortError as aborted:
                    # A handler of a library has called abort itself, or the request did not arrive.
                    code = getattr(context.code(), "name", "UNKNOWN")
                    strip(aborted)
                    return None
                except Exception as failure:  # noqa: BLE001 - the caller gets its status
                    if not is_unary and (context.cancelled() or context.done()):
                        # The caller has gone, so nobody can receive the failure.
                        log.info("a stream ended under its handler", method=method, error=repr(failure))
                        code = "CANCELLED"
                        return None
                    status = status_of(failure, where=method)
                    code = status_code(status).name
                if late is not None and late.done():
                    # It has an answer that found no room. Such an answer is large, and its caller may be slow.
                    late = None
                await abort(context, status)
            except BaseException:
                code = "CANCELLED"
                raise
            finally:
                took = time.perf_counter() - start
                _handled_with(method, code).inc()
                if late is not None:
                    late.cancel()
                if not is_unary:
                    streams.dec()
                else:
                    seconds.observe(took)
                    if served is not None and served.context.sampled:
                        _emit_served(method, served, took, code)

        return call

    def _reader(self, method: str, rule: Rule) -> ReadRequest:
        if rule.is_open:
            return lambda context: self._open_requests.read(context, method, address_of(context))

        def read(context: RpcCall) -> Awaitable[Any]:
            who = callers.caller()
            if who.kind is CallerKind.SERVICE:
                return context.read()
            return self._key_requests.read(context, method, who.tenant)

        return read

    def _hold_request(self, raw: bytes) -> None:
        """Take room for a single request."""
        self._held_requests.hold(held_by_request(raw))

    async def _admit(self, context: RpcCall, method: str, rule: Rule) -> tuple[tracing.ServedCall | None, str | None]:
        """Identify the caller and count the call, or refuse it. Returns its trace and its key, if it has them."""
        authorization = service = traceparent = key = None
        for name, value in context.invocation_metadata() or ():
            if name == "authorization":
                if authorization is not None and not rule.is_open:
                    # The key of a long call is looked at again (long_calls.py), so there must be no doubt which it is.
                    raise Refusal("KEY_INVALID", "send one key: the metadata has more than one `authorization`")
                authorization = str(value)
            elif name == SERVICE_CREDENTIAL_KEY:
                service = str(value)
            elif name == tracing.TRACEPARENT:
                traceparent = str(value)
        if rule.is_open:
            identity = callers.ANONYMOUS
            self._open_calls.count_open(address_of(context))
        else:
            key = self._key_in(authorization)
            identity = await self._identify(context, key, service)
            if not rule.allows(identity):
                raise _not_allowed(method, rule, identity)
            if identity.kind is not CallerKind.SERVICE:
                self._open_calls.count(identity)
        callers.set_caller(identity)
        return self._trace(traceparent, rule), key

    def _key_in(self, authorization: str | None) -> str | None:
        if authorization is None:
            return None
        if self._keys is None or authorization[: len(_BEARER)].lower() != _BEARER:
            raise Refusal("KEY_INVALID", "this service does not know the key in the authorization")
        return authorization[len(_BEARER) :].strip()

    async def _identify(self, context: RpcCall, key: str | None, service: str | None) -> Identity:
        if key is not None:
            assert self._keys is not None
            if (known := self._keys.known(key)) is not None:
                return known
            address = address_of(context)
            self._open_calls.begin_lookup(address)
            try:
                return await self._keys.identify(key)
            finally:
                self._open_calls.end_lookup(address)
        if service is not None:
            name = None if self._credential is None else self._credential.verify(service)
            if name is None:
                raise Refusal("KEY_INVALID", "the service credential was not signed with a secret of this process")
            return Identity(CallerKind.SERVICE, name)
        # Only a port that demands client certificates finds one here. The port need not be known: where there is such
        # a port, no header is taken (config.py), so a caller on the public port beside it is never a service.
        for common_name in context.auth_context().get("x509_common_name", ()):
            return Identity(CallerKind.SERVICE, common_name.decode("utf-8", "replace"))
        raise Refusal("KEY_MISSING", "send the metadata `authorization: Bearer <key>`")

    def _trace(self, traceparent: str | None, rule: Rule) -> tracing.ServedCall | None:
        incoming = None if traceparent is None else tracing.parse_traceparent(traceparent)
        if incoming is not None:
            own = incoming.child() if incoming.sampled else incoming
        elif rule.is_traced:
            own = tracing.new_trace(self._sampler is not None and self._sampler.take())
        else:
            return None
        served = tracing.ServedCall(own, incoming, {})
        tracing.set_served_call(served)
        return served


async def _within(work: asyncio.Task[Any], seconds_max: float | None) -> Any:
    """The result of the work, or TimeoutError. The work is not cancelled here: it may be reading, and a read is only
    cancelled after its call has been ended.
    """
    await asyncio.wait([work], timeout=seconds_max)
    if not work.done():
        raise TimeoutError
    try:
        return work.result()
    finally:
        # Its failure holds this frame, which must not hold it in turn (aborting.py).
        del work


def unknown_method(method: str) -> grpc.RpcMethodHandler[Any, Any]:
    """Answers calls of a method that nobody serves. A handler that streams both ways fits every call."""

    async def refuse(requests: Any, context: RpcCall) -> None:
        refusal = Refusal("UNIMPLEMENTED", f"there is no method {method}", metadata={"method": method})
        await abort(context, status_of(refusal))

    return grpc.stream_stream_rpc_method_handler(refuse)


def _bytes_max(rule: Rule, server_bytes_max: int) -> int:
    if rule.is_open:
        return min(server_bytes_max, SMALL_BYTES_MAX)
    return server_bytes_max if rule.bytes_max is None else min(server_bytes_max, rule.bytes_max)


def _work_on_stream(behaviour: Any, read: ReadRequest) -> RunCall:
    """Runs a handler of a stream of requests. It gets an iterator, for whose messages the time of a request holds. A
    handler that keeps to times of its own reads from the context instead.
    """
    answer = _streaming(behaviour)

    async def requests(context: RpcCall) -> AsyncIterator[Any]:
        while (request := await read(context)) is not grpc.aio.EOF:
            yield request

    async def work(_: Any, context: RpcCall, key: str | None) -> Any:
        return await answer(requests(context), context)

    return work


def _work(
    answer: Handler,
    decoded: Callable[[bytes], Any],
    read: ReadRequest,
    rule: Rule,
    *,
    hold: Callable[[bytes], object],
    long_calls: LongCalls | None = None,
) -> RunCall:
    """Reads the single request, takes room for it with `hold`, and runs the handler."""

    async def work(_: Any, context: RpcCall, key: str | None) -> Any:
        raw = await read(context)
        if raw is grpc.aio.EOF:
            raise Refusal("INVALID_REQUEST", "the call ended without a request")
        hold(raw)
        request = decoded(raw)
        if not rule.judges_text:
            await search_nul(request, raw)
        validate(request)
        if long_calls is not None and key is not None:
            return await long_calls.run(key, answer(request, context))
        return await answer(request, context)

    return work


def _streaming(behaviour: Any) -> Handler:
    """A handler that yields its answers becomes one that writes them."""

    async def write_all(request: Any, context: RpcCall) -> None:
        async with contextlib.aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                await context.write(response)

    return write_all if inspect.isasyncgenfunction(behaviour) else behaviour


def _unchanged(message: Any) -> Any:
    return message


def _has_time(context: RpcCall, seconds_max: float | None) -> bool:
    """The caller's own deadline, which gRPC enforces, is not later than the limit of the rule."""
    if seconds_max is None:
        return True
    remaining: float | None = context.time_remaining()  # it is None without a deadline, although the stubs deny that
    return remaining is not None and remaining <= seconds_max


def _not_allowed(method: str, rule: Rule, identity: Identity) -> Refusal:
    return Refusal(
        "ROLE_REQUIRED",
        f"{method} may be called only by: {rule}",
        metadata={"method": method, "required": str(rule), "have": identity.grade},
    )


def _emit_served(method: str, call: tracing.ServedCall, took: float, code: str) -> None:
    end_ns = time.time_ns()
    tracing.emit_span(
        f"{tracing.service_name()}.{method.rpartition('/')[2]}",
        call.context,
        parent=call.parent,
        start_ns=end_ns - round(took * 1e9),
        end_ns=end_ns,
        attributes={"rpc.system": "grpc", "rpc.method": method, "rpc.grpc.status": code, **call.notes},
        error="" if code == "OK" else code,
        kind="server",
    )
