"""`windlass admin verify`: does what is stored keep the promises?

Every journal is read and folded anew, compared with the rows that claim to be its projection, and searched for what
must never be there. The judging of one journal (`journals.py`) uses the events alone and none of the rules that wrote
them, where that can be; so a rule that is wrong is found out. Reads only, in one snapshot, so it may run beside a live
stack.
"""
