"""`windlass admin verify`: checks whether the stored data keeps the promises.

Every journal is read, folded again, compared with the rows that should be its projection, and searched for what must
never be in it. The checks of one journal (`journals.py`) use the events and, as far as possible, none of the rules that
wrote them, so that a wrong rule is found. It only reads, in one snapshot, so it may run beside a live stack.
"""
