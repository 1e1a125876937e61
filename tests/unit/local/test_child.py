"""The log of a process that did not start is shown in lines that a person can read."""

import json

from deploy.local.child import readable


def test_traceback_is_shown_in_lines_and_all_else_as_it_is() -> None:
    failed = json.dumps(
        {"event": "the process goes down", "exception": "  | File x.py\n  | SyntaxError: invalid syntax"}
    )
    log = f'{{"event": "ready"}}\n{failed}\nnot JSON\n17\n{{"exception": null}}\n'
    assert readable(log) == [
        '{"event": "ready"}',
        "  | File x.py",
        "  | SyntaxError: invalid syntax",
        "not JSON",
        "17",
        '{"exception": null}',
    ]
