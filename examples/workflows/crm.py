"""A customer database for the example `webhook-to-crm`: `python3 examples/workflows/crm.py` serves it at port 8080.

It takes contacts by POST, changes them by PUT, and answers with JSON. It keeps nothing.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Contacts(BaseHTTPRequestHandler):
    """Answers 201 to a new contact and 200 to a changed one, with the contact and its address here."""

    def do_POST(self) -> None:
        self._answer(201, f"/contacts/{self._contact()['id']}")

    def do_PUT(self) -> None:
        self._contact()
        self._answer(200, self.path)

    def _contact(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return found

    def _answer(self, status: int, place: str) -> None:
        text = json.dumps({"contact": place}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 8080), Contacts).serve_forever()
