"""A server of files that has faults."""

import os
import threading
from contextlib import contextmanager
from unittest.mock import patch

from tests.make import http_server

PIECE = 100_000
"""Bytes of an answer with the fault "piece", or "some piece", whose answer does not tell the length of the file."""


class FileServer:
    """Gives files with ETag and Range; `faults` are what it does first, one of them a request.

    A text in place of a file's content is an address that it sends the reader to.
    """

    def __init__(self, files):
        self.files = files
        self.tag = '"one"'
        self.tells_length = True
        self.chunks = False
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
        self.asked.append((request.command, request.path, span, request.headers.get("If-Range", "")))
        fault = self.faults.pop(0) if self.faults and request.command == "GET" else ""
        content = self.files.get(request.path)
        headers = {"ETag": self.tag} if self.tag else {}
        headers |= {"Location": content} if isinstance(content, str) else {}
        status = 404 if content is None else 302 if isinstance(content, str) else 200
        start = 0
        same = request.headers.get("If-Range") in {None, self.tag} or fault == "no If-Range"
        if span and same and content and fault != "no Range":
            start = int(span.removeprefix("bytes=").removesuffix("-")) // (2 if fault == "another span" else 1)
            status = 206 if start < len(content) and fault != "ends here" else 416
        body = content[start:] if status in {200, 206} else b""
        if fault in {"piece", "some piece"}:
            status = 206
            body = body[:PIECE]
        if status == 206:
            total = "*" if fault == "some piece" else len(content)
            headers["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{total}"
        if status == 416:
            headers["Content-Range"] = f"bytes */{start if fault == 'ends here' else len(content)}"
        if isinstance(fault, tuple):
            status, headers["Retry-After"] = fault
        request.send_response(status)
        if self.chunks:
            headers["Transfer-Encoding"] = "chunked"
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        elif self.tells_length:
            headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body[: 2 * len(body) // 3] if fault in {"cut", "hold"} else body)
        if fault == "hold":
            request.wfile.flush()
            self.hold.wait(60)
