"""Decides from which point of its origin a fork takes over what was done."""


def taken_over_seq(state: str, last_seq: int, from_node: str, *, has_new_input: bool) -> int:
    """The fork takes over what its origin had done well after the event with this sequence. 0: nothing.

    Without a node to begin with, an origin that has done everything well leaves nothing to do, and what was done with
    another input does not fit. Then the fork begins at the beginning.
    """
    begins_anew = not from_node and (state == "SUCCESS" or has_new_input)
    return 0 if begins_anew else last_seq
