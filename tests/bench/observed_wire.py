"""A proxy on this machine that notes what is sent to a model server, and what it answers.

Notes are added to a file, one JSON object a line: `asked`, `status`, `answered`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from typing_extensions import override

_TIMEOUT_SECONDS = 3600.0


class Wire:
    """Hands everything on to a server; what is posted is noted once it is answered.

    `url` is where the API begins for those who ask through it.
    """

    def __init__(self, server_url: str, notes: Path) -> None:
        lock = threading.Lock()
        server = urllib.parse.urlsplit(server_url)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._pass_on(None)

            def do_POST(self) -> None:
                self._pass_on(self.rfile.read(int(self.headers["Content-Length"])))

            def _pass_on(self, body: bytes | None) -> None:
                connection = http.client.HTTPConnection(
                    server.hostname or "", server.port, timeout=_TIMEOUT_SECONDS
                )
                try:
                    headers = {"Content-Type": "application/json"}
                    connection.request(self.command, self.path, body, headers)
                    answer = connection.getresponse()
                    content = answer.read()
                finally:
                    connection.close()
                if body is not None:
                    self._note(body, answer.status, content)
                with contextlib.suppress(ConnectionError):  # a replica may be gone by now
                    self.send_response(answer.status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            def _note(self, body: bytes, status: int, content: bytes) -> None:
                note = {"asked": json.loads(body), "status": status}
                note["answered"] = json.loads(content)
                with lock, notes.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(note) + "\n")

            @override
            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{server.path}"

    def __enter__(self) -> Wire:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
