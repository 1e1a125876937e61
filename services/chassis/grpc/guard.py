"""The guard before every handler. It identifies the caller, checks its rights and its request, and maps errors.

It is one wrapper per method, made when the method is registered. An interceptor would be made anew for each call, and
costs several times as much. The order matters: the caller is identified before the request is read, so that a caller
without a key does not learn what a well-formed request is. Errors are mapped outermost, so that nothing leaks.
Every handler is registered with a stream of requests, also when it reads only one. Otherwise gRPC would call it only
when the request has come, and callers could hold open calls without being asked for a key.
Hazard: a cancellation (the caller has gone) passes through. It is no failure of the handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import grpc
from google.rpc import status_pb2

from services.chassis.grpc.errors import Refusal, status_code, status_of, trailers_of
from services.chassis.grpc.validation import decode, prepare, validate
from services.chassis.identity.callers import (
    ANONYMOUS,
    CallerKind,
    Identity,
    KeyReader,
    Rule,
    ServiceCredential,
    set_caller,
)
from services.chassis.process.naming import SERVICE_CREDENTIAL_KEY
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter, gauge, histogram
from services.chassis.telemetry.tracing import (
    TRACEPARENT,
    AttributeValue,
    Sampler,
    TraceContext,
    emit_span,
    new_trace,
    parse_traceparent,
    service_name,
    set_present_trace,
    set_span_notes,
    tracing_is_on,
)

log = logger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_BEARER: Final = "bearer "
# The size of a request of a method that needs no key, because anybody can send one.
OPEN_BYTES_MAX: Final = 64 * 1024
# Open calls of one method that needs no key. That is far fewer than a server serves at once.
OPEN_CALLS_MAX: Final = 1_000

_handled = counter("grpc_server_handled_total", "Finished RPCs.", ["method", "code"])
_seconds = histogram("grpc_server_handling_seconds", "How long RPCs took.", ["method"])
_streams = gauge("grpc_server_streams", "Streams that are open.", ["method"])


class _Served(NamedTuple):
    """The span of one RPC: its own context, the caller's context if there is one, and the notes of the handler."""

    own: TraceContext
    parent: TraceContext | None
    notes: dict[str, AttributeValue]


class _Gauges:
    """The metric children of one method, looked up once."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._by_code: dict[str, Any] = {}
        self._seconds = _seconds.labels(method)
        self.streams = _streams.labels(method)

    def ended(self, code: str) -> None:
        child = self._by_code.get(code)
        if child is None:
            child = self._by_code[code] = _handled.labels(self._method, code)
        child.inc()

    def took(self, seconds: float) -> None:
        self._seconds.observe(seconds)


class _Places:
    """Limits the calls of one method that needs no key. A call takes its place until gRPC is done with it, because a
    caller that does not read the answer keeps it open after its handler.
    """

    def __init__(self, method: str) -> None:
        self._method = method
        self._taken = 0

    def take(self, context: Any) -> None:
        if self._taken >= OPEN_CALLS_MAX:
            raise Refusal("OPEN_CALLS_EXCEEDED", f"{OPEN_CALLS_MAX} calls of {self._method} are open already")
        self._taken += 1
        context.add_done_callback(self._give_back)

    def _give_back(self, _: Any) -> None:
        self._taken -= 1


class Guard:
    def __init__(
        self,
        rules: Mapping[str, Rule],
        *,
        keys: KeyReader | None = None,
        credential: ServiceCredential | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self._rules = dict(rules)
        self._keys = keys
        self._credential = credential
        self._sampler = sampler

    def with_rules(self, rules: Mapping[str, Rule]) -> Guard:
        """The same callers under other rules."""
        return Guard(rules, keys=self._keys, credential=self._credential)

    def rule_of(self, method: str) -> Rule:
        rule = self._rules.get(method)
        if rule is None:
            raise LookupError(f"{method} has no rule: say who may call it, or do not serve it")
        return rule

    def wrap(
        self, method: str, handler: grpc.RpcMethodHandler[Any, Any], *, request_bytes_max: int
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The same handler behind this guard."""
        rule = self.rule_of(method)
        behaviour = _behaviour(handler)
        if not (inspect.iscoroutinefunction(behaviour) or inspect.isasyncgenfunction(behaviour)):
            raise TypeError(f"{method} is not implemented: its servicer method is not async")
        assert handler.request_deserializer is not None
        kind = getattr(handler.request_deserializer, "__self__", None)
        if not handler.request_streaming and kind is not None:
            prepare(kind.DESCRIPTOR)
        if rule.is_open:
            request_bytes_max = min(request_bytes_max, OPEN_BYTES_MAX)
        decoded = functools.partial(
            decode,
            handler.request_deserializer,
            request_bytes_max,
            refuses_nul=not rule.judges_text,
            items_max=rule.items_max,
        )
        if handler.request_streaming or handler.response_streaming:
            return self._wrap_stream(method, handler, decoded, rule)
        return grpc.stream_unary_rpc_method_handler(
            self._unary(method, behaviour, decoded, rule),
            request_deserializer=None,
            response_serializer=handler.response_serializer,
        )

    def _unary(
        self, method: str, behaviour: Any, decoded: Callable[[bytes], Any], rule: Rule
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        gauges = _Gauges(method)
        seconds_max = rule.seconds_max
        places = _Places(method) if rule.is_open else None

        async def call(_: Any, context: Context) -> Any:
            start = time.perf_counter()
            code, trace, late = "OK", None, None
            try:
                if places is not None:
                    places.take(context)
                trace = await self._admit(context, method, rule)
                has_time = _has_time(context, seconds_max)
                if has_time:
                    raw = await _raw_request(context)
                else:
                    assert seconds_max is not None
                    # One deadline for request and answer, so that a late request gets no additional time.
                    deadline = asyncio.get_running_loop().time() + seconds_max
                    late = asyncio.create_task(_raw_request(context))
                    raw = await _within(late, seconds_max)
                request = decoded(raw)
                validate(request)
                if has_time:
                    return await behaviour(request, context)
                async with asyncio.timeout_at(deadline):
                    return await behaviour(request, context)
            except BaseException as failure:
                code, status = _outcome(failure, method)
                if status is None:
                    raise
                await _abort(context, status)
            finally:
                took = time.perf_counter() - start
                gauges.ended(code)
                gauges.took(took)
                if late is not None:
                    late.cancel()
                if trace is not None:
                    _emit_served(method, trace, took, code)

        return call

    def _wrap_stream(
        self,
        method: str,
        handler: grpc.RpcMethodHandler[Any, Any],
        decoded: Callable[[bytes], Any],
        rule: Rule,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        deserializer, prepare = _stream_input(handler, decoded)
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        wrapped = self._stream(method, _behaviour(handler), prepare, rule)
        return make(
            wrapped,
            request_deserializer=deserializer,
            response_serializer=handler.response_serializer,
        )

    def _stream(
        self, method: str, behaviour: Any, prepare: Callable[[Any, Context], Awaitable[Any]], rule: Rule
    ) -> Callable[[Any, Context], Any]:
        gauges = _Gauges(method)

        async def served(request: Any, context: Context) -> Any:
            await self._admit(context, method, rule)
            return await behaviour(await prepare(request, context), context)

        async def generated(request: Any, context: Context) -> None:
            await self._admit(context, method, rule)
            # Close it when the caller goes in the middle of a write, and not when it is garbage collected.
            asked = await prepare(request, context)
            async with contextlib.aclosing(behaviour(asked, context)) as responses:
                async for response in responses:
                    await context.write(response)

        work = generated if inspect.isasyncgenfunction(behaviour) else served
        seconds_max = rule.seconds_max
        places = _Places(method) if rule.is_open else None

        async def stream(request: Any, context: Context) -> Any:
            code, late = "OK", None
            gauges.streams.inc()
            try:
                if places is not None:
                    places.take(context)
                if _has_time(context, seconds_max):
                    return await work(request, context)
                late = asyncio.create_task(work(request, context))
                return await _within(late, seconds_max)
            except BaseException as failure:
                if _is_unheard(failure, context):
                    log.info("a stream ended under its handler", method=method, error=repr(failure))
                    code = "CANCELLED"
                    return None
                code, status = _outcome(failure, method)
                if status is None:
                    raise
                await _abort(context, status)
            finally:
                gauges.streams.dec()
                gauges.ended(code)
                if late is not None:
                    late.cancel()

        return stream

    async def _admit(self, context: Context, method: str, rule: Rule) -> _Served | None:
        """Identify the caller, or refuse the call. Returns the server's span if there is to be one."""
        key = service = traceparent = None
        for name, value in context.invocation_metadata() or ():
            if name == "authorization":
                key = str(value)
            elif name == SERVICE_CREDENTIAL_KEY:
                service = str(value)
            elif name == TRACEPARENT:
                traceparent = str(value)
        if rule.is_open:
            identity = ANONYMOUS
        else:
            identity = await self._identify(context, key, service)
            if not rule.allows(identity):
                raise _not_allowed(method, rule, identity)
        set_caller(identity)
        if traceparent is None and not rule.is_traced:
            return None
        return self._trace(traceparent, rule)

    async def _identify(self, context: Context, key: str | None, service: str | None) -> Identity:
        if key is not None:
            if self._keys is None or key[: len(_BEARER)].lower() != _BEARER:
                raise Refusal("KEY_INVALID", "the authorization is no key that this service knows")
            return await self._keys.identify(key[len(_BEARER) :].strip())
        if service is not None:
            name = None if self._credential is None else self._credential.verify(service)
            if name is None:
                raise Refusal("KEY_INVALID", "the service credential does not fit")
            return Identity(CallerKind.SERVICE, name)
        # Only a port that demands client certificates has one here. A process with such a port takes no service
        # header (config.py), so a caller at its public port cannot pass for a service.
        for common_name in context.auth_context().get("x509_common_name", ()):
            return Identity(CallerKind.SERVICE, common_name.decode("utf-8", "replace"))
        raise Refusal("KEY_MISSING", "send the metadata `authorization: Bearer <key>`")

    def _trace(self, traceparent: str | None, rule: Rule) -> _Served | None:
        """The span of this RPC. None: it is not sampled. present_trace() knows the context in both cases."""
        incoming = None if traceparent is None else parse_traceparent(traceparent)
        if incoming is None:
            if not rule.is_traced:
                return None
            own = new_trace(False if self._sampler is None else self._sampler.take())
        else:
            own = incoming.child() if incoming.sampled else incoming
        set_present_trace(own)
        if not own.sampled or not tracing_is_on():
            return None
        notes: dict[str, AttributeValue] = {}
        set_span_notes(notes)
        return _Served(own, incoming, notes)


async def _within(work: asyncio.Task[Any], seconds_max: float | None) -> Any:
    """The result of the work, or TimeoutError. The work goes on then, because it may be in the middle of a read, which
    must not be cancelled before its call has ended.
    """
    done, _ = await asyncio.wait([work], timeout=seconds_max)
    if not done:
        raise TimeoutError
    return work.result()


def _outcome(failure: BaseException, method: str) -> tuple[str, status_pb2.Status | None]:
    """The code for the metrics, and the status for the caller. None: the failure is raised as it is."""
    if isinstance(failure, grpc.aio.AbortError):
        # A handler of a library has aborted the call itself.
        return "ABORTED_BY_HANDLER", None
    if not isinstance(failure, Exception):
        return "CANCELLED", None
    status = status_of(failure, where=method)
    return status_code(status).name, status


def _is_unheard(failure: BaseException, context: Any) -> bool:
    """True when the caller has gone, so that nobody can get the status."""
    is_ours = isinstance(failure, Exception) and not isinstance(failure, grpc.aio.AbortError)
    return is_ours and (context.cancelled() or context.done())


async def _abort(context: Context, status: status_pb2.Status) -> None:
    await context.abort(status_code(status), status.message, trailers_of(status))


def unknown_method(method: str) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler that refuses a call of an unknown method. It streams in both directions, which suits every call."""

    async def refuse(requests: Any, context: Context) -> None:
        refusal = Refusal("UNIMPLEMENTED", f"there is no method {method}", metadata={"method": method})
        await _abort(context, status_of(refusal))

    return grpc.stream_stream_rpc_method_handler(refuse)


def _behaviour(handler: grpc.RpcMethodHandler[Any, Any]) -> Any:
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


def _stream_input(
    handler: grpc.RpcMethodHandler[Any, Any], decoded: Callable[[bytes], Any]
) -> tuple[Callable[[bytes], Any] | None, Callable[[Any, Context], Awaitable[Any]]]:
    """The deserializer for gRPC, and how the handler gets its input. The guard itself decodes a single request."""

    async def all_of_them(requests: Any, context: Context) -> Any:
        return requests

    async def the_only_one(_: Any, context: Context) -> Any:
        request = decoded(await _raw_request(context))
        validate(request)
        return request

    return (decoded, all_of_them) if handler.request_streaming else (None, the_only_one)


async def _raw_request(context: Context) -> bytes:
    raw: Any = await context.read()
    if raw is grpc.aio.EOF:
        raise Refusal("INVALID_REQUEST", "the call ended without a request")
    return raw  # type: ignore[no-any-return]


def _has_time(context: Context, seconds_max: float | None) -> bool:
    """True when the caller's own deadline, which gRPC enforces, keeps this call within `seconds_max`."""
    if seconds_max is None:
        return True
    remaining: float | None = context.time_remaining()  # None without a deadline, unlike its stubs say
    return remaining is not None and remaining <= seconds_max


def _not_allowed(method: str, rule: Rule, identity: Identity) -> Refusal:
    return Refusal(
        "ROLE_REQUIRED",
        f"{method} is for: {rule}",
        metadata={"method": method, "required": str(rule), "have": identity.grade},
    )


def _emit_served(method: str, span: _Served, took: float, code: str) -> None:
    end_ns = time.time_ns()
    emit_span(
        f"{service_name()}.{method.rpartition('/')[2]}",
        span.own,
        parent=span.parent,
        start_ns=end_ns - round(took * 1e9),
        end_ns=end_ns,
        attributes={"rpc.system": "grpc", "rpc.method": method, "rpc.grpc.status": code, **span.notes},
        error="" if code == "OK" else code,
        kind="server",
    )
