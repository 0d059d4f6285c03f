"""A server on this machine, from which data sets are downloaded."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


class Server(http.server.ThreadingHTTPServer):
    """Serves one directory and notes what is asked for."""

    def __init__(self, root: Path) -> None:
        self.root, self.requests = root, list[str]()
        server = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args: object) -> None:
                super().__init__(*args, directory=str(root))  # type: ignore[arg-type]

            def log_message(self, *args: object) -> None:
                server.requests.append(self.path)

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server; what is downloaded goes into the folder "cache"."""
    root = tmp_path / "site"
    root.mkdir()
    monkeypatch.setenv("QUADRIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server(root) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
