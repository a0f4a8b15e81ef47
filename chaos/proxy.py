"""A proxy before PostgreSQL that loses replies: what was asked is done, and whoever asked does not hear of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any
from typing import Literal
from typing import NamedTuple

#: What is asked: the next COMMIT, or the next statement. It commits itself where its connection is in autocommit mode,
#: as the engine's are.
Question = Literal["commit", "statement"]

_COMMIT = b"COMMIT\x00"
#: What PostgreSQL says when it may be asked again, outside of a transaction.
_READY = b"Z\x00\x00\x00\x05I"
_FIELDS = b"SFATAL\x00VFATAL\x00C57P01\x00Mterminating connection due to administrator command\x00\x00"
_TERMINATED = b"E" + (len(_FIELDS) + 4).to_bytes(4, "big") + _FIELDS


class Loss(NamedTuple):
    """Which reply is lost, and how.

    `dropped`: the server has answered, so it is done. `cut`: the connection ends while the server is still at it.
    `ended`: the answer comes, and with it the server's word that it ends the connection, as when it shuts down.
    """

    question: Question
    how: Literal["dropped", "cut", "ended"] = "dropped"


class Proxy:
    """Forwards connections to a port of this machine, from a thread of its own."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        #: What is to be lost next.
        self.armed: Loss | None = None
        self._struck = threading.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxy", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def lose(self, loss: Loss, within: float) -> float | None:
        """Lose the next such reply, and its connection; answer when that was, null if nothing was asked in time."""
        self._struck.clear()
        self.armed = loss
        self._struck.wait(within)
        self.armed = None
        return time.monotonic() if self._struck.is_set() else None

    def close(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _end(self) -> None:
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=5)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, upstream_writer}
        self._open |= both
        connection = _Connection(writer)
        ways = [
            asyncio.ensure_future(self._forward_questions(reader, upstream_writer, connection)),
            asyncio.ensure_future(self._forward_replies(upstream_reader, writer, connection)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open -= both
            for way in ways:
                way.cancel()
            for one in both:
                one.transport.abort()

    async def _forward_questions(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: _Connection
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if self.armed is not None and _is_meant(data, self.armed.question):
                    connection.losing, self.armed = self.armed, None
                writer.write(data)
                await writer.drain()
                if connection.losing is not None and connection.losing.how == "cut":
                    connection.asker.transport.abort()
                    self._struck.set()
                    # The server goes on: its side ends with its answer, and this with it.
                    await asyncio.Event().wait()

    async def _forward_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: _Connection
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                losing = connection.losing
                if losing is not None:
                    if losing.how == "ended":
                        writer.write(data.removesuffix(_READY) + _TERMINATED)
                        await writer.drain()
                        writer.close()
                        await writer.wait_closed()
                    # The server answers when it is done: after the commit.
                    self._struck.set()
                    return
                writer.write(data)
                await writer.drain()


class _Connection:
    """Who asks, and what is to be lost of the answer."""

    def __init__(self, asker: asyncio.StreamWriter) -> None:
        self.asker = asker
        self.losing: Loss | None = None


def _is_meant(data: bytes, question: Question) -> bool:
    if question == "commit":
        return _COMMIT in data
    return data[:1] in (b"P", b"B", b"Q") and _COMMIT not in data
