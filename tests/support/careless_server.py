"""A server that repeats everything it was sent, and fails in every way.

async with careless_server() as port:
    ...  # http://127.0.0.1:PORT/404 answers 404 with what it was sent; with `as=json` in the query, as JSON
    ...  # http://127.0.0.1:PORT/odd/hangs, closes, circles, elsewhere, cookies
"""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web


async def _echo(request: web.Request) -> web.Response:
    said = [f"{request.method} {request.raw_path} {request.path_qs}", *request.query.values()]
    said += [f"{name}: {value}" for name, value in request.headers.items()]
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if scheme:
        said.append(base64.b64decode(credentials).decode("latin-1"))
    status = int(request.path.strip("/"))
    if "as" in request.query:
        return web.json_response({"said": said}, status=status)
    return web.Response(status=status, text="\n".join(said))


@contextlib.asynccontextmanager
async def careless_server() -> AsyncIterator[int]:
    end = asyncio.Event()

    async def odd(request: web.Request) -> web.Response:
        kind = request.match_info["kind"]
        if kind == "hangs":
            await end.wait()
        elif kind == "closes":
            assert request.transport is not None
            request.transport.close()
        elif kind == "circles":
            raise web.HTTPFound(request.path_qs)
        elif kind == "elsewhere":
            raise web.HTTPFound("gopher://canary-user@127.0.0.1/canary")
        return web.Response(status=500, headers={"Set-Cookie": "canary canary=canary-cookie"})

    application = web.Application()
    application.router.add_route("*", r"/{status:\d+}", _echo)
    application.router.add_route("*", "/odd/{kind}", odd)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        end.set()
        await runner.cleanup()
