"""How a command finds the api and proves who asks: options first, then the environment, then the home of a
local stack.

Hazard: a key is read from a file or the environment, never taken as an argument: command lines are public.
"""

import contextlib
import functools
import inspect
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from windlass.cli.invocation import DEFAULT_HOME, as_typed

CALL_SECONDS = 30.0
# A repeat is harmless: every command that changes something carries a request id or is idempotent by nature.
TRIES = 5
TRY_AGAIN_SECONDS = 0.3

HomeOption = Annotated[Path, typer.Option("--home", help="Home of the local stack.", envvar="WINDLASS_HOME")]
AddressOption = Annotated[str | None, typer.Option("--address", help="host:port of an api.", envvar="WINDLASS_ADDRESS")]
KeyFileOption = Annotated[Path | None, typer.Option("--key-file", help="File with the key; WINDLASS_KEY also does.")]
AuthorityFileOption = Annotated[
    Path | None,
    typer.Option(
        "--authority-file",
        help="Speak TLS to --address; its certificate must be signed by one of these.",
        envvar="WINDLASS_AUTHORITY_FILE",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


class Unusable(Exception):
    """No address or no key was found; the message says what to do."""


@dataclass(frozen=True)
class Connection:
    """A channel to the api; every call carries the key."""

    channel: Any
    key: str

    def call(self, request: Any) -> Any:
        """The one RPC that takes this request, repeated while the api (or what it depends on) is away."""
        import grpc
        from google.protobuf.message_factory import GetMessageClass

        services = request.DESCRIPTOR.file.services_by_name.values()
        methods = (method for service in services for method in service.methods)
        method = next(each for each in methods if each.input_type.full_name == request.DESCRIPTOR.full_name)
        callable_ = self.channel.unary_unary(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        for attempt in range(1, TRIES + 1):
            try:
                return callable_(request, timeout=CALL_SECONDS, metadata=self.metadata)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or attempt == TRIES:
                    raise
                time.sleep(TRY_AGAIN_SECONDS * attempt)
        raise AssertionError("the last try returns or raises")

    def whole(self, request: Any) -> Any:
        """All pages of a list as one answer. A page of large items is shorter than it was asked to be."""
        answer = self.call(request)
        while answer.next_page_token:
            request.page_token = answer.next_page_token
            more = self.call(request)
            answer.MergeFrom(more)
            answer.next_page_token = more.next_page_token
        return answer

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self.key}")]


@dataclass(frozen=True)
class ApiOptions:
    """The options that select an api and a key, as typed. `with_api_options` makes the fields options of a command."""

    home: HomeOption = DEFAULT_HOME
    address: AddressOption = None
    key_file: KeyFileOption = None
    authority_file: AuthorityFileOption = None

    @contextlib.contextmanager
    def connected(self, *, key: str = "admin") -> Iterator[Connection]:
        """A connection. An error inside the block is printed and ends the command with exit code 1. The authority
        counts for --address only: the stack of a home speaks plain text on this machine."""
        import grpc

        try:
            target = self.address or _address_of(self.home)
            secret = _key(self.home, self.key_file, key)
            authority_file = self.authority_file if self.address else None
            with _channel(target, authority_file) as channel:
                yield Connection(channel, secret)
        except Unusable as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from None
        except grpc.RpcError as error:
            _tell(error, self.home, target if authority_file is None else f"{target} over TLS")
            raise typer.Exit(1) from None

    def call(self, request: Any, *, key: str = "admin") -> Any:
        with self.connected(key=key) as api:
            return api.call(request)

    def whole(self, request: Any, *, key: str = "admin") -> Any:
        with self.connected(key=key) as api:
            return api.whole(request)


def with_api_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of ApiOptions as options in the place of its parameter `api_options`."""
    options = inspect.signature(ApiOptions).parameters

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(api_options=ApiOptions(**{name: given.pop(name) for name in options}), **given)

    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(command).parameters.values():
        parameters += options.values() if each.name == "api_options" else [each]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    # Typer reads both.
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _channel(target: str, authority_file: Path | None) -> Any:
    import grpc

    if authority_file is None:
        return grpc.insecure_channel(target)
    try:
        authority = authority_file.read_bytes()
    except OSError as error:
        raise Unusable(f"cannot read the authority in {authority_file}: {error.strerror}") from None
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(authority))


def _address_of(home: Path) -> str:
    try:
        found = json.loads((home / "up.json").read_text())
    except FileNotFoundError:
        raise Unusable(
            f"nothing runs on {home}; start it with: {as_typed('windlass up', home)}\n"
            "or name an api with --address host:port"
        ) from None
    apis = [each["grpc"] for each in found["processes"] if each["service"] == "api"]
    if not apis:
        raise Unusable(f"no api runs on {home}; see: {as_typed('windlass status', home)}")
    return str(apis[0])


def _key(home: Path, key_file: Path | None, name: str) -> str:
    if key_file is None and (given := os.environ.get("WINDLASS_KEY")):
        return given
    path = key_file or home / f"{name}.key"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise Unusable(f"cannot read the key in {path}: {error.strerror}; name another with --key-file") from None


def _tell(error: Any, home: Path, target: str) -> None:
    """The message, the reason, each faulty field, and the command that helps."""
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    status = rpc_status.from_call(error)
    # An error without a status comes from gRPC itself: nobody answers.
    is_away = status is None and error.code().name == "UNAVAILABLE"
    said = error.details()
    if is_away:
        said = f"no api answers at {target} ({said.rpartition('last error: ')[2]})"
    typer.echo(said, err=True)
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details if status is not None else ():
        if detail.Unpack(bad):
            for violation in bad.field_violations:
                typer.echo(f"  {violation.field}: {violation.description or violation.reason}", err=True)
        detail.Unpack(info)
    typer.echo(f"reason: {info.reason or error.code().name}", err=True)
    if hint := info.metadata.get("try"):
        typer.echo(f"try:    {as_typed(hint, home)}", err=True)
