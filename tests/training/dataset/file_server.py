"""A server of files that has faults."""

import os
import threading
from contextlib import contextmanager
from unittest.mock import patch

from tests.make import http_server

PIECE = 100_000
"""Bytes of an answer with the fault "piece", or "some piece", whose answer does not tell the length of the file."""


class FileServer:
    """Gives files with Range; `faults` are what it does first, one of them a request.

    A text in place of a file's content is an address that it sends the reader to. It tells the `length` of a body by
    its header, in "chunks", or not.
    """

    def __init__(self, files):
        self.files = files
        self.length = "header"
        self.faults = []
        self.asked = []
        self.hold = threading.Event()

    @contextmanager
    def running(self):
        with patch.dict(os.environ, NO_PROXY="127.0.0.1"), http_server(self.answer) as url:
            yield url
            self.hold.set()

    def answer(self, request):
        span = request.headers.get("Range", "")
        self.asked.append((request.command, request.path, span))
        fault = self.faults.pop(0) if self.faults and request.command == "GET" else ""
        content = self.files.get(request.path)
        if isinstance(fault, tuple):
            self.send(request, fault[0], {"Retry-After": fault[1]})
        elif content is None:
            self.send(request, 404, {})
        elif isinstance(content, str):
            self.send(request, 302, {"Location": content})
        else:
            start = int(span[6:-1] or 0) // (2 if fault == "another span" else 1) * (fault != "no Range")
            end = start + PIECE if "piece" in fault else len(content)
            total = "*" if fault == "some piece" else start if fault == "ends here" else len(content)
            status = 200 if end >= len(content) and not start else 206
            headers = {} if status == 200 else {"Content-Range": f"bytes {start}-{end - 1}/{total}"}
            if fault == "ends here" or 0 < len(content) <= start:
                status = 416
                headers["Content-Range"] = f"bytes */{total}"
            self.send(request, status, headers, content[start:end], fault)

    def send(self, request, status, headers, body=b"", fault=""):
        request.send_response(status)
        if self.length == "chunks":
            headers["Transfer-Encoding"] = "chunked"
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        elif self.length == "header":
            headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body[: 2 * len(body) // 3] if fault in {"cut", "hold"} else body)
        if fault == "hold":
            request.wfile.flush()
            self.hold.wait(60)
