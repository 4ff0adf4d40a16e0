"""`jobd-mcp`: an MCP server over stdio that is a thin pipe to the broker's warm endpoint.

It imports next to nothing, so a client sees the tools in a blink. Only protocol messages reach stdout. It ends
when its client does; when the broker ends it goes on, and the next request finds a new one.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from jobd_mcp import local
from jobd_mcp.conversation import Conversation, parsed_request

LINGER_S = 3.0  # how long answers are still passed on after the client closed our stdin
PARENT_CHECK_S = 1.0
CONNECT_LIMIT_S = 5.0
MOST_PENDING = 1 << 20
_CHUNK = 65536
_SAFE_WRITE = 4096  # PIPE_BUF: a pipe that polls writable takes this much without blocking
_GONE = select.POLLERR | select.POLLHUP | select.POLLNVAL if hasattr(select, "poll") else 0

Connect = Callable[[], socket.socket]

USAGE = """\
usage: jobd-mcp [--version | --help]

An MCP server over stdio. Without settings it finds this user's broker on this
machine, or starts it with one worker in the background; jobs outlive the client.

  JOBD_URL        unix:///path/broker.sock or http(s)://host:port of another broker
  JOBD_TOKEN      bearer token, for http(s)
  JOBD_STATE_DIR  where this user's broker keeps its state
"""


def main() -> None:
    """The console script. Exit codes: 0 the client is done, 1 no broker, 2 usage."""
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        from importlib.metadata import version

        sys.stdout.write(f"{version('jobd-mcp')}\n")
        return
    if arguments in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        return
    if arguments:
        sys.stderr.write(f"jobd-mcp: unknown argument {arguments[0]}; it takes none. See jobd-mcp --help.\n")
        sys.exit(2)
    try:
        code = _serve()
    except KeyboardInterrupt:
        code = 130
    except (local.LocalError, OSError) as error:
        sys.stderr.write(f"jobd-mcp: {error}\n")
        code = 1
    # Not sys.exit: a thread that still looks for a broker must not hold up the end.
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


def _serve() -> int:
    url = local.setting(os.environ, "url")
    if url is not None and not url.startswith("unix://"):
        from jobd_mcp import remote

        return remote.serve(url, local.setting(os.environ, "token"))
    stdin, stdout = _claim_standard_streams()
    return Pipe(stdin, stdout, _connector(url)).run()


def _claim_standard_streams() -> tuple[int, int]:
    """Private descriptors of the protocol. Whoever reads 0 from now on finds nothing; what is written to 1 goes
    to stderr: no library and no child can put a byte between the messages, or take one away."""
    stdin, stdout = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:
        os.dup2(nothing, 1)
    os.close(nothing)
    return stdin, stdout


def _connector(url: str | None) -> Connect:
    if url is not None:
        return lambda: _connected(Path(url.removeprefix("unix://")).with_name("mcp.sock"))

    def find_or_start() -> socket.socket:
        at = local.here(os.environ)
        deadline = time.monotonic() + CONNECT_LIMIT_S
        while True:
            local.ensure(at, os.environ)
            try:
                return _connected(at.mcp_socket)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    return find_or_start


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        raise ConnectionError(f"no broker answers on {path}: {error.strerror or error}") from None
    connection.setblocking(False)
    return connection


class Lines:
    """Whole lines out of a stream of bytes."""

    def __init__(self) -> None:
        self._partial = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        head, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._partial += data
            return []
        whole = bytes(self._partial) + head
        self._partial = bytearray(rest)
        return [line + b"\n" for line in whole.split(b"\n") if line.strip()]

    def forget(self) -> None:
        """Drop half a line: its other half died with its sender."""
        self._partial.clear()


class Pipe:
    """Moves lines between the client and whichever broker there is, on one thread.

    A second thread looks for a broker, which may take seconds; meanwhile the client's going is still noticed.
    """

    def __init__(self, stdin: int, stdout: int, connect: Connect) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._connect = connect
        self._parent = os.getppid()
        self._conversation = Conversation()
        self._from_client, self._from_broker = Lines(), Lines()
        self._to_client, self._to_broker = bytearray(), bytearray()
        self._waiting: deque[bytes] = deque()  # lines that no broker has been told yet
        self._broker: socket.socket | None = None
        self._search: _Search | None = None
        self._ever_connected = False
        self._ends_at: float | None = None  # set once the client has closed our stdin

    def run(self) -> int:
        """Until the client is gone; the exit code. Raises what the first search for a broker raised."""
        self._look_for_broker()
        while not self._done():
            ready = self._await_events()
            if ready.get(self._stdout, 0) & _GONE or os.getppid() != self._parent:
                return 0
            try:
                if ready.get(self._stdout, 0) & select.POLLOUT:
                    del self._to_client[: os.write(self._stdout, self._to_client[:_SAFE_WRITE])]
            except OSError:
                return 0
            if self._stdin in ready:
                self._read_client()
            if self._broker is not None and self._broker.fileno() in ready:
                self._exchange_with_broker(ready[self._broker.fileno()])
            if self._search is not None and self._search.bell in ready:
                self._take_broker(self._search)
            self._pass_on()
        return 0

    def _done(self) -> bool:
        if self._ends_at is None:
            return False
        first_search = self._search is not None and not self._ever_connected  # its failure is worth telling
        pending = self._waiting or self._to_broker or self._to_client or self._conversation.in_flight
        idle = not (first_search or pending)
        return idle or time.monotonic() >= self._ends_at

    def _await_events(self) -> dict[int, int]:
        poll = select.poll()
        poll.register(self._stdout, select.POLLOUT if self._to_client else 0)
        if self._ends_at is None and len(self._to_broker) < MOST_PENDING and len(self._waiting) < 1000:
            poll.register(self._stdin, select.POLLIN)
        if self._broker is not None:
            events = select.POLLIN if len(self._to_client) < MOST_PENDING else 0
            poll.register(self._broker, events | (select.POLLOUT if self._to_broker else 0))
        if self._search is not None:
            poll.register(self._search.bell, select.POLLIN)
        wait_s = PARENT_CHECK_S
        if self._ends_at is not None:
            wait_s = min(wait_s, max(0.0, self._ends_at - time.monotonic()))
        return dict(poll.poll(wait_s * 1000))

    def _read_client(self) -> None:
        try:
            data = os.read(self._stdin, _CHUNK)
        except OSError:
            data = b""
        if not data:
            self._ends_at = time.monotonic() + LINGER_S
        self._waiting.extend(self._from_client.feed(data))

    def _exchange_with_broker(self, events: int) -> None:
        connection = self._broker
        assert connection is not None
        try:
            if events & select.POLLOUT:
                del self._to_broker[: connection.send(self._to_broker)]
            if events & (select.POLLIN | _GONE):
                data = connection.recv(_CHUNK)
                if not data:
                    raise ConnectionResetError
                for line in self._from_broker.feed(data):
                    if self._conversation.heard(line):
                        self._to_client += line
        except BlockingIOError:
            return
        except OSError:
            self._lose_broker()

    def _lose_broker(self) -> None:
        """Answer what was in flight. A new broker is looked for when the client asks again: one that was stopped
        on purpose stays stopped while nobody needs it."""
        assert self._broker is not None
        self._broker.close()
        self._broker = None
        self._from_broker.forget()
        self._to_broker.clear()
        for answer in self._conversation.broken():
            self._to_client += answer
        if self._conversation.opening_owed:
            self._look_for_broker()

    def _look_for_broker(self) -> None:
        if self._search is None:
            self._search = _Search(self._connect)

    def _take_broker(self, search: _Search) -> None:
        self._search = None
        search.close()
        if search.failure is not None and not self._ever_connected:
            raise search.failure
        if search.found is None:
            for line in self._waiting:
                self._to_client += self._conversation.refused(line, str(search.failure)) or b""
            self._waiting.clear()
            return
        self._ever_connected = True
        self._broker = search.found
        for line in self._conversation.opening():
            self._to_broker += line

    def _pass_on(self) -> None:
        """Give waiting lines to the broker, or look for one if a request is among them."""
        if self._broker is not None and self._conversation.ready:
            while self._waiting:
                line = self._waiting.popleft()
                self._conversation.said(line)
                self._to_broker += line
        elif self._broker is None and self._search is None:
            # Notifications and responses belonged to the connection that is gone.
            self._waiting = deque(line for line in self._waiting if parsed_request(line) is not None)
            if self._waiting:
                self._look_for_broker()


class _Search:
    """Looks for a broker on a thread of its own; `bell` becomes readable when it has ended."""

    def __init__(self, connect: Connect) -> None:
        self.found: socket.socket | None = None
        self.failure: Exception | None = None
        self.bell, self._rope = os.pipe()
        threading.Thread(target=self._run, args=(connect,), name="search", daemon=True).start()

    def _run(self, connect: Connect) -> None:
        try:
            self.found = connect()
        except (local.LocalError, OSError) as error:
            self.failure = error
        except Exception as error:
            self.failure = local.LocalError(f"{type(error).__name__}: {error}")
        os.write(self._rope, b"!")

    def close(self) -> None:
        os.close(self.bell)
        os.close(self._rope)


if __name__ == "__main__":
    main()
