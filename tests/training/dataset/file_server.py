"""A server of files that has faults."""

import os
import threading
from contextlib import contextmanager
from unittest.mock import patch

from tests.make import http_server


class FileServer:
    """Gives files with ETag and Range; `faults` are what it does first, one of them a request."""

    def __init__(self, files):
        self.files = files
        self.tag = '"one"'
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
        status = 200 if content is not None else 404
        headers = {"ETag": self.tag} if self.tag else {}
        start = 0
        same = request.headers.get("If-Range") in {None, self.tag} or fault == "no If-Range"
        if span and same and content and fault != "no Range":
            start = int(span.removeprefix("bytes=").removesuffix("-")) // (2 if fault == "another span" else 1)
            status = 206 if start < len(content) else 416
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if status == 416:
            headers["Content-Range"] = f"bytes */{len(content)}"
        if isinstance(fault, tuple):
            status, headers["Retry-After"] = fault
        request.send_response(status)
        body = content[start:] if status in {200, 206} else b""
        headers["Content-Length"] = str(len(body) + (fault == "promises more"))
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body[: 2 * len(body) // 3] if fault in {"cut", "hold"} else body)
        if fault == "hold":
            request.wfile.flush()
            self.hold.wait(60)
