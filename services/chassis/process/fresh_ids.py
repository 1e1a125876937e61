"""Fresh ids, for what nobody else names.

They are handed in like the clock, so that a test can repeat a run exactly.
"""

from uuid import uuid4


def fresh_uuid() -> str:
    """It comes from the randomness of the system, so nobody can guess it."""
    return str(uuid4())
