"""How the coordinator carries executions: take them on, decide, append, and act only after the commit.

One loop (commit_loop.py) decides and writes everything. Grants, reports, messages and timers are put into the inbox of
their execution, where they wait for the next batch. A batch decides all inboxes, appends the events in one commit, and
then runs the effects. So the state in memory is never ahead of the journal by more than one append, and all inputs that
gathered for an execution become one append.
"""
