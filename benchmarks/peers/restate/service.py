"""The handlers that the workloads call, served as `hypercorn service:app` under the name in BENCH_SERVICE."""

import os

import restate

bench = restate.Service(os.environ["BENCH_SERVICE"])


async def noop() -> None:
    """Nothing. This is a coroutine, because a plain function would run in a thread."""


@bench.handler()
async def one(context: restate.Context) -> None:
    """One step."""
    await context.run_typed("step", noop)


@bench.handler()
async def five(context: restate.Context) -> None:
    """Five steps in a row."""
    for _ in range(5):
        await context.run_typed("step", noop)


@bench.handler()
async def fan_out(context: restate.Context) -> None:
    """A thousand steps at once, awaited together."""
    await restate.gather(*(context.run_typed("step", noop) for _ in range(1000)))


app = restate.app(services=[bench])
