"""Write the golden files that do not exist yet, after an event or a control node was added:

    python -m tests.golden.write

A new event gets its file by itself. To store a new journal, add its story to STORIES (stories.py) and run this again. A
file that exists is never written again, so a story may follow the code while its journal stays as it was stored.
"""

from collections.abc import Iterator
from typing import get_args

from services.coordinator.core.events import Event
from services.coordinator.store.codec import encode_event, seal
from services.coordinator.store.event_table import EVENT_TABLE
from tests.golden.stories import STORIES
from tests.support.golden import EVENTS, JOURNALS, plain, plain_rows, write_json
from tests.support.samples import T, sample
from tests.support.story import EXECUTION_ID, Story


def write_events() -> Iterator[str]:
    names = {row.event: row.name for row in EVENT_TABLE}
    for kind in get_args(Event):
        path = EVENTS / f"{names[kind]}.json"
        if path.exists():
            continue
        event = sample(kind, 1)
        stored = seal(EXECUTION_ID, 12, getattr(event, "epoch", 7), T, [encode_event(event)])
        write_json(path, {"stored": stored.hex(), "fields": plain(event)})
        yield str(path)


def write_journals() -> Iterator[str]:
    for name, (document, play) in STORIES.items():
        folder = JOURNALS / name
        if folder.exists():
            continue
        story = Story(**document)
        play(story)
        folder.mkdir()
        write_json(folder / "definition.json", document)
        (folder / "journal.hex").write_text("".join(row.hex() + "\n" for row in story.stored))
        write_json(folder / "rows.json", plain_rows(story.execution))
        yield str(folder)


def main() -> None:
    for folder in (EVENTS, JOURNALS):
        folder.mkdir(exist_ok=True)
    for written in (*write_events(), *write_journals()):
        print(written)


if __name__ == "__main__":
    main()
