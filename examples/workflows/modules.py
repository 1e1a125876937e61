"""The modules of the example workflows. They stand for real systems, need no network, and keep nothing.

Only the module of the bank changes anything: it writes a file. So all others are idempotent. A real module hands
`ctx.effect_key` to the system that it changes, so that the system recognises a repetition.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from windlass.sdk import Context, PermanentError, TransientError, module

COUNTRIES = {"AT", "DE", "FR"}
JSON = dict[str, Any]


@module("shop.reserve@1", idempotent=True)
async def reserve(_ctx: Context, inputs: JSON, _config: JSON) -> JSON:
    """Set goods aside for an order."""
    return {"reservation": f"r-{inputs['order']}"}


@module("shop.charge@1", idempotent=True)
async def charge(_ctx: Context, inputs: JSON, _config: JSON) -> JSON:
    """Charge a card. Cards whose numbers begin with 0 are refused."""
    if inputs["card"].startswith("0"):
        raise PermanentError("the bank has refused the card", type="CARD_REFUSED")
    return {"payment": f"p-{inputs['order']}", "amount": inputs["amount"]}


@module("shop.ship@1", idempotent=True)
async def ship(_ctx: Context, inputs: JSON, _config: JSON) -> JSON:
    """Send a parcel, if a carrier goes there."""
    if inputs["country"] not in COUNTRIES:
        raise PermanentError(f"no carrier goes to {inputs['country']}", type="NO_CARRIER")
    return {"parcel": f"s-{inputs['order']}"}


@module("shop.undo@1", idempotent=True)
async def undo(_ctx: Context, inputs: JSON, _config: JSON) -> JSON:
    """Release a reservation, or refund a payment."""
    return {"undone": inputs["what"], "because": inputs["why"]}


@module("supplier.ask@1", idempotent=True)
async def ask_supplier(ctx: Context, inputs: JSON, config: JSON) -> JSON:
    """Ask a supplier who answers only from the attempt `answersAt` on."""
    if ctx.attempt < config["answersAt"]:
        raise TransientError("the supplier is busy", type="SUPPLIER_BUSY")
    return {"part": inputs["part"], "price": 12, "attempt": ctx.attempt}


@module("partner.quote@1", idempotent=True)
async def quote(ctx: Context, inputs: JSON, _config: JSON) -> JSON:
    """Ask a partner for a price. The circuit of the partner keeps the work back while the partner fails."""
    ctx.target(f"partner-{inputs['partner']}")
    return {"partner": inputs["partner"], "price": 100}


@module("bank.transfer@1")
def transfer(ctx: Context, inputs: JSON, _config: JSON) -> None:
    """Leave an order for the bank. Whoever reads the file ends the run with the token in it."""
    Path(inputs["file"]).write_text(ctx.defer())


@module("warehouse.rows@1", idempotent=True)
async def rows(_ctx: Context, inputs: JSON, _config: JSON) -> JSON:
    """Read so many rows."""
    return {"rows": [{"id": number, "cents": number * 10} for number in range(inputs["count"])]}


@module("warehouse.load@1", idempotent=True)
async def load(_ctx: Context, inputs: JSON, _config: JSON) -> JSON:
    """Store rows, and say how many they were and what they add up to."""
    return {"rows": len(inputs["rows"]), "euros": sum(row["euros"] for row in inputs["rows"])}


@module("quality.check@1", idempotent=True)
async def check(_ctx: Context, inputs: JSON, _config: JSON) -> JSON:
    """Let a delivery of numbers pass, unless one of them is negative."""
    if bad := [number for number in inputs["numbers"] if number < 0]:
        raise PermanentError(f"{len(bad)} of the numbers are negative", type="NEGATIVE_NUMBERS")
    return {"numbers": inputs["numbers"]}


@module("contacts.read@1", idempotent=True)
async def read_contact(_ctx: Context, inputs: JSON, _config: JSON) -> JSON:
    """Read a line like `Ann <ann@example.org>`."""
    name, _, address = inputs["line"].partition(" <")
    if "@" not in address:
        raise PermanentError(f"there is no address in {inputs['line']!r}", type="NO_ADDRESS")
    return {"name": name, "address": address.rstrip(">")}


@module("jobs.look@1", idempotent=True)
async def look(_ctx: Context, inputs: JSON, _config: JSON) -> JSON:
    """Look how far a job of another system is. It advances by a quarter from one look to the next."""
    percent = min(100, inputs["look"] * 25)
    return {"job": inputs["job"], "percent": percent, "done": percent == 100}


@module("files.list@1", idempotent=True)
def list_files(_ctx: Context, inputs: JSON, _config: JSON) -> JSON:
    """Name the files of a folder, in the order of their names."""
    return {"files": sorted(str(path) for path in Path(inputs["folder"]).iterdir() if path.is_file())}


@module("files.count@1", idempotent=True)
def count(_ctx: Context, inputs: JSON, _config: JSON) -> JSON:
    """Count the words of a file."""
    return dict(Counter(Path(inputs["file"]).read_text().lower().split()))


@module("words.add@1", idempotent=True)
async def add(_ctx: Context, inputs: JSON, _config: JSON) -> JSON:
    """Add counts of words to one another."""
    total: Counter[str] = Counter()
    for counts in inputs["counts"]:
        total.update(counts)
    return dict(total)


@module("model.answer@1", idempotent=True)
async def answer(ctx: Context, inputs: JSON, config: JSON) -> JSON:
    """Stand for a language model: do a simple task, and count every word that goes in or out as a token."""
    words = inputs["text"].split()
    done = words[: config["words"]] if config["task"] == "shorten" else [word.title() for word in words]
    ctx.cost(len(words) + len(done))
    return {"text": " ".join(done)}
