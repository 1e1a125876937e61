"""`python -m benchmarks.loops`: loops of 10,000 items, one after the other.

It prints one JSON line for each width: the items a second of the best of three loops, and the CPU of every process
that takes part, PostgreSQL and the client included, per 1,000 items.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from benchmarks.peers.environment import ROOT
from benchmarks.rounds import MeasuredStack, subject_of

WIDTHS = (10, 100, 1_000)
ROUNDS = 3


def workflow(width: int, items: int) -> dict[str, Any]:
    config = {"items": list(range(items)), "maxParallel": width, "body": {"module": "noop@1"}}
    return {"name": f"loop-{width}", "nodes": [{"id": "each", "module": "for_each@1", "config": config}]}


async def timed(subject: MeasuredStack, name: str) -> float:
    began = time.perf_counter()
    await subject.client.run(name)
    return time.perf_counter() - began


async def measure(items: int) -> None:
    async with subject_of(ROOT) as subject:
        for width in WIDTHS:
            definition = workflow(width, items)
            await subject.client.apply(definition)
            loops = [await subject.counted(timed(subject, definition["name"])) for _ in range(ROUNDS)]
            wall_s, cpu_s = min(loops)
            line = {
                "width": width,
                "items_per_s": round(items / wall_s),
                "cpu_s_per_1000_items": round(1_000 * cpu_s / items, 3),
                "memory_pss_mb": round(subject.memory_mb()),
            }
            print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures loops.")
    parser.add_argument("--items", type=int, default=10_000)
    asyncio.run(measure(parser.parse_args().items))


if __name__ == "__main__":
    main()
