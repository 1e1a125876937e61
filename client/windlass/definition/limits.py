"""The limits of a definition, and the forms of the names in it."""

from typing import Final

# This limits the canonical JSON, and also the text that it was read from.
DEFINITION_BYTES_MAX: Final = 1024 * 1024
NODES_MAX: Final = 2_000
EDGES_MAX: Final = 20_000
# Levels of objects and lists in a definition, an input and the output of a module. Parsers of protobuf stop at 100
# levels of messages; an object of free JSON takes three (Struct, map entry and Value), inside a few others.
DEPTH_MAX: Final = 30
# The keys of the state that the nodes of one definition set.
STATE_KEYS_MAX: Final = 64
FAULTS_MAX: Final = 1_000
VERSION_MAX: Final = 2**31 - 1
# So many levels of children may be below an execution that has no parent.
CHILD_DEPTH_MAX: Final = 16

# A for_each@1 has so many items, and so many of them under way at once. A repeat@1 takes so many turns.
ITEMS_MAX: Final = 10_000
PARALLEL_MAX: Final = 1_000
PARALLEL_DEFAULT: Final = 10
TURNS_MAX: Final = 10_000

ATTEMPTS_MAX: Final = 100
# One attempt holds a place of its runner, which is shared.
ATTEMPT_SECONDS_MAX: Final = 86_400
FACTOR_MAX: Final = 10

SIGNAL_CHARACTERS_MAX: Final = 128
TITLE_CHARACTERS_MAX: Final = 256
ASSIGNEES_MAX: Final = 50
ASSIGNEE_CHARACTERS_MAX: Final = 128
# The limits of one approval. Its output holds the forms of all decisions, and has to fit into the journal.
APPROVALS_REQUIRED_MAX: Final = 10
FORM_BYTES_MAX: Final = 16 * 1024

NAME_FORM: Final = r"[a-z][a-z0-9-]{0,62}"
NODE_ID_FORM: Final = r"[a-z][a-z0-9_]{0,62}"
STATE_KEY_FORM: Final = r"[A-Za-z_][A-Za-z0-9_]{0,62}"
BRANCH_FORM: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
