"""`windlass admin verify`: checks whether the stored data keeps the promises.

Every journal is read, folded again, compared with the rows that should be its projection, and searched for what must
never be in it. The checks of one journal (`journals.py`) use the events and, as far as possible, none of the rules that
wrote them, so that a wrong rule is found. It only reads, in one snapshot, so it may run beside a live stack.

`findings.py` names the promises. Some numbers are not among them, because no row can show them: S15 (an idempotent
module has one effect) is about the world outside, and S21 (versions understand each other) and S23 to S25 (secrets,
bounds, back-pressure) are about how processes behave; tests check those. S17, at most one execution for a schedule and
a time, comes with triggers, which do not exist yet.
"""
