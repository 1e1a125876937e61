"""What a runner says, within bounds.

A runner may be anybody's machine, with a clock of its own and a mind of its own. What it tells goes into a journal and
rows that others share: a text with a NUL or a date in the year 300,000 would be refused by the database, together with
everything else of the same flush. So it is bent into range here, where every report passes; none of it decides
anything.
"""

from services.coordinator.core.values import SECOND, Error, Instant, Span

# How far a runner's clock may be ahead and be believed.
CLOCK_LEAD_MAX: Span = 86_400 * SECOND
COST_TOKENS_MAX = 1_000_000_000_000
HASH_BYTES = 32


def told_time(time: Instant, now: Instant) -> Instant:
    return 0 if time < 0 else min(time, now + CLOCK_LEAD_MAX)


def told_text(text: str) -> str:
    return text.replace("\0", "\ufffd") if text else text


def told_error(error: Error) -> Error:
    return Error(error.error_class, told_text(error.type), told_text(error.message))


def told_cost(tokens: int) -> int:
    return 0 if tokens < 0 else min(tokens, COST_TOKENS_MAX)


def told_fraction(fraction: float) -> float:
    """0 for what is no number: the comparison fails."""
    return min(max(0.0, fraction), 1.0)
