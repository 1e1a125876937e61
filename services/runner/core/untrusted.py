"""Bounds for what a module reports.

A module is untrusted code: it may report a number where text belongs, or text that cannot be encoded. Such values are
clamped here and never refused, so that the outcome of a run can always be reported. No function here raises.
"""

from __future__ import annotations

MESSAGE_CHARACTERS_MAX = 4_096
NAME_CHARACTERS_MAX = 256
# A coordinator takes no longer ones.
BRANCH_CHARACTERS_MAX = 255
# This is longer than any retry policy waits, and far below the limit of a protobuf Duration.
RETRY_AFTER_SECONDS_MAX = 366 * 86_400.0
COST_TOKENS_MAX = 1_000_000_000_000


def clamp_text(value: object, characters_max: int = MESSAGE_CHARACTERS_MAX) -> str:
    """Bounded text, without the NUL that PostgreSQL refuses and without lone surrogates, which cannot be encoded."""
    try:
        text = str(value)[:characters_max]
    except Exception:  # noqa: BLE001 - the __str__ of a module's class may raise anything
        text = f"a {type(value).__name__} that cannot be written"
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def clamp_number(value: object) -> float:
    """A finite number; 0 for everything else."""
    try:
        number = float(value) if isinstance(value, int | float | str) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return number if number - number == 0.0 else 0.0


def clamp_seconds(value: object) -> float | None:
    """The wait that was asked for; None when there is none."""
    seconds = clamp_number(value)
    return min(seconds, RETRY_AFTER_SECONDS_MAX) if seconds > 0.0 else None


def clamp_cost(value: object) -> int:
    return int(min(max(0.0, clamp_number(value)), COST_TOKENS_MAX))


def clamp_fraction(value: object) -> float:
    return min(max(0.0, clamp_number(value)), 1.0)
