"""The rules of an execution, and nothing else.

An execution is a journal of events and the state that they add up to. This package says which events follow from a
command (the report of a runner, a timer that is due, a cancel) and what each event does to the state. It reads no
clock, draws no random numbers and does no I/O: `now`, random numbers and ids arrive with the call.

How a command is handled
------------------------
`handle(execution, command, now)` works in three steps.

1. A handler checks the command against the state. If the command does not fit, the handler refuses it and changes
   nothing. A repeated command gives no events and the first answer; a late report is a refusal with a reason.
2. The handler emits events. `Turn.emit` appends an event to the decision and applies it to the state at once, so the
   next question always sees the state as it is. There is one copy of the rules and no second set of counters.
3. `advance` emits what follows by itself: nodes that no edge reached are skipped, control nodes begin, and the
   execution ends when nothing is going any more. It repeats until nothing more follows.

The caller (`app/`) writes all events of a decision in one commit. After the commit it does what `effects` derives from
them: give a run to a runner, stop a run, report the end. Until the commit the state is ahead of the disk. If anything
raises before it, the caller throws the execution away and reads it again.

Events carry their consequences
-------------------------------
An event says what was decided and what followed from it: how the edges out of the node resolved, which work became
ready, was skipped or is blocked. `graph.judge` decides this once, before the event is emitted. In the same way the
order to stop (`StopOrdered`) names the work that it cancels. Applying an event is bookkeeping. It asks no question
whose answer could change when the rules do, so a journal that is written today folds to the same state after the rules
have changed. A test folds every stored journal with all rules replaced by a function that raises.

Work, runs and waits
--------------------
A piece of work is named by its `WorkKey`: node, iteration, generation. Every event about work carries the key. A run is
one attempt at a piece of work; runs are numbered through the whole execution, and an event that names the next number
makes that run. Work is created in the state when it is first mentioned, so a large definition costs only what is used.

A control node (`controls/`) is done by the core itself. It begins when its join holds. It may succeed or fail at once,
or it starts a wait: `WaitStarted` says what is waited for and, if time can end it, until when. Whatever ends a wait
calls `controls.end_wait`: `WaitEnded` says how the wait ended, and the control goes on from there. All waits work in
this way. An execution that only waits can be parked: it gives back its slot and its memory until a message or the time
wakes it.

A loop (`controls/for_each.py`, `controls/repeat.py`) is a control node with items. These are work of the same node with
the iterations 1 to n. The outcome of an item is judged by its loop (`loops.py`) as that of a node is judged by the
graph, and the outcome of the loop follows that of its last item.

Commands of people
------------------
A command that a person gives has a message id, and the event that answers it carries this id: the event says what was
changed, or it is a CommandRefused or a CommandChangedNothing. The state remembers the newest answers, so a repeated
command gets the first one, whoever holds the execution by then (`answers.py`). While an execution is paused, no work is
granted, no control node begins, and the timers of backoffs and waits are kept apart. Everything else goes on: runs
finish, and what follows from them is kept until the execution is resumed.

How an execution ends
---------------------
It ends when nothing is going any more: well, or as the first failure that nobody handled, or as it was ordered to
(`StopOrdered`: a cancel, the deadline, the first failure of a workflow that fails fast). If it does not end well and
finished nodes say how they are undone, they are undone first (`compensating.py`).

Obligations
-----------
What an execution owes to others is part of its state until the other side has it, so that a successor finds it in the
journal and does it again; the receiver recognises the repeat.

    what is owed                                                    what acknowledges it
    a child is started                                              ChildStarted or ChildRefused
    a child that nobody waits for any more is cancelled             ChildCancelTold
    a runner whose execution is ending is told to stop              the end of the run
    a large list of a loop is read from the output store            ItemsRead
    a large output of a loop is put into the output store           LoopClosed
    the parent, and then the dispatcher, hear that it is finished   the end of the lease

Laws
----
1. No clock, randomness, I/O, logging, async or protobuf (`.importlinter` enforces this).
2. Check first, then emit. A refused command emits nothing but the record of a late report.
3. Applying an event judges nothing and costs no more than the edges of the work that it names.
4. The fold of the journal is the state. Effects are a function of events and state.
5. What cannot be applied is a bug. It raises, and only that execution is affected.
6. Every command has a handler and every event its bookkeeping; other matches on events are exhaustive and closed with
   `assert_never`. A new control node is one file in `controls/`; a new event is its dataclass, its message, its
   bookkeeping in `fold/` and a golden journal.

Reading order
-------------
    values, definition, retry       the words, the compiled workflow (`compiling`), when work is tried again
    events, commands, decision      what happened, what is asked, what is answered
    state, fold                     what the events add up to
    graph, turn, advance            the rules: edges and joins, emitting events, what follows by itself
    handlers/                       what each command does, one file per family of commands
    late_reports, answers           which reports count; how commands of people are answered once
    controls/                       the control nodes
    loops, items, loop_outputs      what an item means for its loop; the list of a loop, and its output
    approvals, circuits             who may decide an approval; when calls of a target stop and begin again
    reopening, forking              which work is done again, and which work a fork takes over
    compensating                    finished nodes are undone before an execution ends that does not end well
    state_paths, workflow_state     what templates see as `state`: where it comes from, and how branches are merged
    inputs, outputs                 what templates see of earlier nodes; the output of an execution
    effects, projection, summary    what is to be done after the commit, and the rows that show the state
    touched                         which parts of the state a snapshot has to write
    explaining                      what an execution waits for, and where its time went
    replaying, redeciding           whether a journal still adds up to its rows, and is decided as it was
    run_ids, child_ids, results     ids, and the checks of what a runner brought
    effect_keys                     keys that name one effect
"""
