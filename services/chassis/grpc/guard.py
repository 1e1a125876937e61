"""The guard before every handler: it identifies the caller, checks its rights and its request, and maps the outcome.

There is one wrapper per method, made when the method is registered. A chain of interceptors, which gRPC makes again for
each call, costs a unary call several times as much. Order matters: the caller is identified before the request is read,
so that nobody without a key learns what a well-formed request is. Errors are mapped outermost, so that no internal text
gets out.
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
from collections.abc import Callable, Coroutine, Mapping
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
Work: TypeAlias = Callable[[Any, Context], Coroutine[Any, Any, Any]]
_BEARER: Final = "bearer "
# The parser reads no more than this for a caller without a key.
OPEN_BYTES_MAX: Final = 64 * 1024
# Calls of one method that needs no key, streams included. Nobody needs more, and a server can serve far more.
OPEN_CALLS_MAX: Final = 1_000

_handled = counter("grpc_server_handled_total", "Finished RPCs.", ["method", "code"])
_seconds = histogram("grpc_server_handling_seconds", "How long RPCs took.", ["method"])
_streams = gauge("grpc_server_streams", "Streams that are open.", ["method"])


class _Served(NamedTuple):
    """The span of one RPC: its own context, its caller's if there is one, and the notes of the handler."""

    own: TraceContext
    parent: TraceContext | None
    notes: dict[str, AttributeValue]


class _MethodMetrics:
    """The metrics of one method; their children are looked up once."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._by_code: dict[str, Any] = {}
        self._seconds = _seconds.labels(method)
        self._streams = _streams.labels(method)

    def begin(self, is_unary: bool) -> float:
        if not is_unary:
            self._streams.inc()
        return time.perf_counter()

    def end(self, is_unary: bool, start: float, code: str) -> float:
        """The seconds that the call took."""
        took = time.perf_counter() - start
        child = self._by_code.get(code)
        if child is None:
            child = self._by_code[code] = _handled.labels(self._method, code)
        child.inc()
        if is_unary:
            self._seconds.observe(took)
        else:
            self._streams.dec()
        return took


class _OpenCalls:
    """Counts the calls of one open method. A call counts until gRPC is done with it: a caller that does not read the
    answer keeps the call open after its handler has ended.
    """

    def __init__(self, method: str) -> None:
        self._method = method
        self._count = 0

    def take(self, context: Any) -> None:
        if self._count >= OPEN_CALLS_MAX:
            raise Refusal("OPEN_CALLS_EXCEEDED", f"{OPEN_CALLS_MAX} calls of {self._method} are open already")
        self._count += 1
        context.add_done_callback(self._give_back)

    def _give_back(self, _: Any) -> None:
        self._count -= 1


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
        """The same guard with rules for further methods."""
        return Guard({**self._rules, **rules}, keys=self._keys, credential=self._credential, sampler=self._sampler)

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
        behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        if not (inspect.iscoroutinefunction(behaviour) or inspect.isasyncgenfunction(behaviour)):
            raise TypeError(f"{method} is not implemented: its servicer method is not async")
        assert handler.request_deserializer is not None
        kind = getattr(handler.request_deserializer, "__self__", None)
        if not handler.request_streaming and kind is not None:
            prepare(kind.DESCRIPTOR)
        decoded = functools.partial(
            decode,
            handler.request_deserializer,
            min(request_bytes_max, OPEN_BYTES_MAX) if rule.is_open else request_bytes_max,
            refuses_nul=not rule.judges_text,
            items_max=rule.items_max,
        )
        work = _work(behaviour, None if handler.request_streaming else decoded)
        is_unary = not (handler.request_streaming or handler.response_streaming)
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(
            self._guarded(method, work, rule, is_unary=is_unary),
            request_deserializer=decoded if handler.request_streaming else None,
            response_serializer=handler.response_serializer,
        )

    def _guarded(self, method: str, work: Work, rule: Rule, *, is_unary: bool) -> Work:
        metrics = _MethodMetrics(method)
        places = _OpenCalls(method) if rule.is_open else None

        async def call(requests: Any, context: Context) -> Any:
            code, span = "OK", None
            late: asyncio.Task[Any] | None = None
            start = metrics.begin(is_unary)
            try:
                if places is not None:
                    places.take(context)
                span = await self._admit(context, method, rule)
                if _has_time(context, rule.seconds_max):
                    return await work(requests, context)
                late = asyncio.create_task(work(requests, context))
                return await _within(late, rule.seconds_max)
            except BaseException as failure:
                if not is_unary and _is_unheard(failure, context):
                    log.info("a stream ended under its handler", method=method, error=repr(failure))
                    code = "CANCELLED"
                    return None
                code, status = _outcome(failure, method)
                if status is None:
                    raise
                await _abort(context, status)
            finally:
                took = metrics.end(is_unary, start, code)
                if late is not None:
                    late.cancel()
                if is_unary and span is not None:
                    _emit_served(method, span, took, code)

        return call

    async def _admit(self, context: Context, method: str, rule: Rule) -> _Served | None:
        """Identify the caller or refuse the call. Returns the server's span, if there is to be one."""
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
        # Only a port that demands client certificates finds one here. The port need not be known: where there is such
        # a port, no header is taken (config.py), so a caller on the public port beside it is never a service.
        for common_name in context.auth_context().get("x509_common_name", ()):
            return Identity(CallerKind.SERVICE, common_name.decode("utf-8", "replace"))
        raise Refusal("KEY_MISSING", "send the metadata `authorization: Bearer <key>`")

    def _trace(self, traceparent: str | None, rule: Rule) -> _Served | None:
        """The span of this RPC; None when unsampled, though present_trace() knows the context then too."""
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
    """The result of the work, or TimeoutError. The work is not cancelled here: it may be reading, and a read is only
    cancelled after its call has been ended.
    """
    done, _ = await asyncio.wait([work], timeout=seconds_max)
    if not done:
        raise TimeoutError
    return work.result()


def _outcome(failure: BaseException, method: str) -> tuple[str, status_pb2.Status | None]:
    """The code that is counted, and the status for the caller. None: the failure is raised unchanged."""
    if isinstance(failure, grpc.aio.AbortError):
        # A handler of a library has called abort itself.
        return "ABORTED_BY_HANDLER", None
    if not isinstance(failure, Exception):
        return "CANCELLED", None
    status = status_of(failure, where=method)
    return status_code(status).name, status


def _is_unheard(failure: BaseException, context: Any) -> bool:
    """The caller has gone, so nobody can receive the failure."""
    is_ours = isinstance(failure, Exception) and not isinstance(failure, grpc.aio.AbortError)
    return is_ours and (context.cancelled() or context.done())


async def _abort(context: Context, status: status_pb2.Status) -> None:
    await context.abort(status_code(status), status.message, trailers_of(status))


def unknown_method(method: str) -> grpc.RpcMethodHandler[Any, Any]:
    """Answers calls of a method that nobody serves. A handler that streams both ways fits every call."""

    async def refuse(requests: Any, context: Context) -> None:
        refusal = Refusal("UNIMPLEMENTED", f"there is no method {method}", metadata={"method": method})
        await _abort(context, status_of(refusal))

    return grpc.stream_stream_rpc_method_handler(refuse)


def _work(behaviour: Any, decoded: Callable[[bytes], Any] | None) -> Work:
    """Reads a single request with `decoded`, or leaves a stream of requests to the handler; then runs the handler."""

    async def read(requests: Any, context: Context) -> Any:
        if decoded is None:
            return requests
        request = decoded(await _raw_request(context))
        validate(request)
        return request

    async def served(requests: Any, context: Context) -> Any:
        return await behaviour(await read(requests, context), context)

    async def generated(requests: Any, context: Context) -> None:
        # The generator is closed as soon as the caller goes, not when it is collected.
        async with contextlib.aclosing(behaviour(await read(requests, context), context)) as responses:
            async for response in responses:
                await context.write(response)

    return generated if inspect.isasyncgenfunction(behaviour) else served


async def _raw_request(context: Context) -> bytes:
    raw: Any = await context.read()
    if raw is grpc.aio.EOF:
        raise Refusal("INVALID_REQUEST", "the call ended without a request")
    return raw  # type: ignore[no-any-return]


def _has_time(context: Context, seconds_max: float | None) -> bool:
    """The caller's own deadline, which gRPC enforces, is not later than the limit of the rule."""
    if seconds_max is None:
        return True
    remaining: float | None = context.time_remaining()  # None without a deadline, whatever its stubs say
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
