"""What can go wrong between a client and a Hub, put into the server's answers."""

import re
import threading
from dataclasses import dataclass

from flask import Flask, Request, Response, jsonify


@dataclass
class Fault:
    """Spoils the answers to requests whose "METHOD path" the pattern is found in: the first `times` of them, after
    `after` that go well.

    status     is answered in place of what was asked for
    cut        the body ends after so many bytes, as when a connection breaks; the header announces the whole
    corrupt    one bit of the body is another
    hold       the answer waits until the test sets this event
    """

    pattern: str
    times: int = 1_000_000
    after: int = 0
    status: int | None = None
    cut: int | None = None
    corrupt: bool = False
    hold: threading.Event | None = None

    def meets(self, method: str, path: str) -> bool:
        if not re.search(self.pattern, f"{method} {path}"):
            return False
        self.after -= 1
        if self.after >= 0 or self.times == 0:
            return False
        self.times -= 1
        return True

    def answer(self, request: Request, app: Flask) -> Response:
        if self.status is not None:
            answer = jsonify(error=f"a planned {self.status}")
            answer.status_code = self.status
            if self.status == 429:
                answer.headers["Retry-After"] = "1"
            return answer
        # The view's own answer, spoilt.
        if self.hold is not None:
            assert self.hold.wait(60)
        answer = app.make_response(app.view_functions[request.endpoint](**request.view_args))
        answer.direct_passthrough = False
        body = bytearray(answer.get_data())
        if self.corrupt:
            body[len(body) // 2] ^= 1
            answer.set_data(bytes(body))
        elif self.cut is not None:
            # A length beside a generator that ends early: the server closes the connection in the middle.
            length = len(body)
            answer.response = iter([bytes(body[: self.cut])])
            answer.headers["Content-Length"] = str(length)
        return answer
