"""How the coordinator carries executions: take on, decide, append, and only then act.

One flusher (commit_loop.py) moves everything. What arrives (grants, reports, messages, timers) is put into the inbox of
its execution and waits for the next turn; a turn decides all inboxes, appends what came of it in one commit, and then
does the effects. So an execution's state in memory is never ahead of its journal by more than the flush under way, and
the completions of one execution that have gathered become one append.
"""
