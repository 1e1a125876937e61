"""Brings the values that a runner reports within bounds.

A runner may be anybody's machine, with a clock of its own. What it says goes into a journal and into rows that others
share: the database would refuse a text with a NUL or a date in the year 300,000, together with everything else of the
same flush. So every report passes through here before it becomes an event. None of these values decides anything.
"""

from services.coordinator.core.values import SECOND, Error, Instant, Span

# How far a runner's clock may be ahead and still be believed.
CLOCK_LEAD_MAX: Span = 86_400 * SECOND
COST_TOKENS_MAX = 1_000_000_000_000
HASH_BYTES = 32


def clamp_time(time: Instant, now: Instant) -> Instant:
    latest = now + CLOCK_LEAD_MAX
    return time if 0 <= time <= latest else min(max(time, 0), latest)


def clean_text(text: str) -> str:
    return text.replace("\0", "\ufffd") if text else text


def clean_error(error: Error) -> Error:
    return Error(error.error_class, clean_text(error.type), clean_text(error.message))


def clamp_cost(tokens: int) -> int:
    return tokens if 0 <= tokens <= COST_TOKENS_MAX else min(max(tokens, 0), COST_TOKENS_MAX)


def clamp_fraction(fraction: float) -> float:
    """NaN becomes 0, because every comparison with it is false."""
    return min(max(0.0, fraction), 1.0)
