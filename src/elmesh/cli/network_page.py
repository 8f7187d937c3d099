"""``elmesh network page``: a live page of an agent, for browsers of this machine.

The server listens at a loopback address, answers GET only, and serves nothing but this page. Another site's script in
the same browser can neither read it (no answer allows another origin, and a name that resolves to this machine is not a
name that the server answers to) nor make it do anything, since there is nothing to do. It reads the agent's status
file; the agent does not notice.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Annotated, Any

import typer

from elmesh.agent import read_status
from elmesh.cli.console import AgentArgument, JsonOption, Output, QuietOption
from elmesh.cli.errors import INTERRUPTED
from elmesh.cli.live_page import render_page, render_state
from elmesh.errors import ElmeshError
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.names import Address, parse_address

__all__ = ["make_server", "page"]

_FILES = {"/live_page.css": "text/css", "/live_page.js": "text/javascript"}
# Nothing is loaded from elsewhere, embedded elsewhere, or sent anywhere.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# Seconds between looks at the status, and between signs of life on a stream without news; streams at the same time.
_INTERVAL, _ALIVE, _MOST_STREAMS = 1.0, 15.0, 16
# Seconds that a connection may take to send its request.
_PATIENCE = 10.0


def page(
    agent: AgentArgument,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to serve the page at: a loopback address.")
    ] = "127.0.0.1:8760",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show a live page of an agent to browsers of this machine, until Ctrl-C.

    It shows the network, who is present, rounds, time left, bytes sent, the epsilon spent and the last lines of the
    log, and states plainly if the agent is not running. It can only be read. From another machine, forward the port:
    ssh -L 8760:127.0.0.1:8760 HOST.
    """
    output = Output(as_json, quiet)
    identity = Identity.load(agent)
    with make_server(identity, listen) as server:
        address = f"http://{parse_address('--listen', listen)}/"
        output.print(f"Page of {identity.name}: {address} (Ctrl-C ends it)")
        output.result({"command": "network page", "agent": identity.name, "address": address})
        sys.stdout.flush()
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def make_server(identity: Identity, listen: str) -> ThreadingHTTPServer:
    """Return a server of an agent's page at a loopback address; any other address is refused."""
    address = parse_address("--listen", listen)
    if "localhost" not in address.hosts:
        raise ElmeshError(
            f"--listen is {listen}, which other machines may reach; the page is for this one alone, so give a loopback "
            "address such as 127.0.0.1:8760. From elsewhere, forward the port: ssh -L 8760:127.0.0.1:8760 HOST."
        )
    try:
        return _PageServer(identity, address)
    except OSError as error:
        raise ElmeshError(
            f"The page cannot be served at {address}: {(error.strerror or str(error)).lower()}; give another port with "
            "--listen."
        ) from None


class _PageServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, identity: Identity, address: Address) -> None:
        self.identity = identity
        self.streams = threading.BoundedSemaphore(_MOST_STREAMS)
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        super().__init__((address.host, address.port), _PageHandler)
        self.names = {str(Address(host, address.port)) for host in address.hosts}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that has left; report anything else in one line."""
        error = sys.exception()
        if not isinstance(error, OSError):
            sys.stderr.write(f"elmesh: the page could not be served: {error}\n")


class _PageHandler(BaseHTTPRequestHandler):
    server: _PageServer
    server_version, sys_version = "elmesh", ""
    timeout = _PATIENCE

    def do_GET(self) -> None:
        """Answer with the page, one of its files, or its stream of changes."""
        if self.headers.get_all("Host") is None or self.headers["Host"].lower() not in self.server.names:
            port = self.server.server_address[1]
            text = f"This page answers to the names of this machine at port {port} only; forward the same port."
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, text)
        elif self.path == "/":
            self._send("text/html", render_page(self.server.identity, self._state()).encode())
        elif self.path in _FILES:
            self._send(_FILES[self.path], _file(self.path[1:]))
        elif self.path == "/events":
            self._stream()
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page; the only one is at /.")

    def _state(self) -> str:
        identity = self.server.identity
        try:
            return render_state(identity, read_status(identity.state))
        except ElmeshError as error:
            return render_state(identity, None, str(error))

    def _stream(self) -> None:
        """Send the state whenever it changes, as server-sent events."""
        if not self.server.streams.acquire(blocking=False):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many browsers show this page; close one.")
            return
        try:
            self._start(HTTPStatus.OK, "text/event-stream")
            sent, when = "", time.monotonic()
            while True:
                state, now = self._state(), time.monotonic()
                if state != sent:
                    self.wfile.write(f"data: {json.dumps(state)}\n\n".encode())
                elif now - when > _ALIVE:
                    self.wfile.write(b": alive\n\n")
                else:
                    now = when
                sent, when = state, now
                time.sleep(_INTERVAL)
        finally:
            self.server.streams.release()

    def _send(self, kind: str, data: bytes, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._start(status, kind, length=len(data))
        self.wfile.write(data)

    def _start(self, status: HTTPStatus, kind: str, length: int | None = None) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._send("text/plain", f"{reason}\n".encode(), status)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is not GET, or no HTTP, in one line with the same headers."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._refuse(status, "This page can only be read: GET is the only method.")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the page is for a person who looks at it."""


@cache
def _file(name: str) -> bytes:
    return (files("elmesh.cli") / name).read_bytes()
