"""Keep the open connections few and moving: who makes room, who is overdue, who is stalled."""

import asyncio
from dataclasses import dataclass
from itertools import chain


@dataclass(slots=True, eq=False)
class Connection:
    """One accepted connection.

    Attributes:
        transport: The socket's own transport, below any TLS.
        deadline_monotonic_seconds: When it is cut off unless it has moved on by then.
    """

    transport: asyncio.Transport
    deadline_monotonic_seconds: float


class ConnectionTable:
    """Every open connection, sorted by what it has done so far.

    A new connection is always let in. When the table is full it takes the place of the oldest
    one that never finished a request's headers, or, while those hold less than half of the
    table, of the one that has gone longest without a request. So neither silent clients nor
    idle ones can keep a scraper out, and a newcomer has half a table of further arrivals to
    speak up in.
    """

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        # Dicts as ordered sets: the first key is the oldest.
        self._silent: dict[Connection, None] = {}
        self._spoken: dict[Connection, None] = {}
        self._stalled: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._silent) + len(self._spoken)

    def admit(self, transport: asyncio.Transport, deadline_monotonic_seconds: float) -> Connection:
        """Enter a new connection, evicting another when there is no room."""
        if len(self) >= self._max_connections:
            crowd = self._silent if self._silence_prevails() else self._spoken
            self._abort(next(iter(crowd)))
        connection = Connection(transport, deadline_monotonic_seconds)
        self._silent[connection] = None
        return connection

    def spoke(self, connection: Connection) -> None:
        """Note that *connection* has just sent a whole request head, or got its response."""
        known = connection in self._silent or connection in self._spoken
        if known:
            self._silent.pop(connection, None)
            self._spoken.pop(connection, None)
            self._spoken[connection] = None

    def stalled(self, connection: Connection) -> None:
        """Note that *connection* does not take what is written to it."""
        self._stalled.setdefault(connection)

    def flowing(self, connection: Connection) -> None:
        """Note that *connection* has taken all that was written to it."""
        self._stalled.pop(connection, None)

    def discard(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        for crowd in (self._silent, self._spoken, self._stalled):
            crowd.pop(connection, None)

    def abort_overdue(self, now_monotonic_seconds: float) -> None:
        """Cut off every connection whose deadline has passed."""
        for connection in self._all():
            if connection.deadline_monotonic_seconds <= now_monotonic_seconds:
                self._abort(connection)

    def abort_longest_stalled(self) -> bool:
        """Cut off the connection that has not read for longest; return whether there was one."""
        connection = next(iter(self._stalled), None)
        if connection is None:
            return False
        self._abort(connection)
        return True

    def abort_all(self) -> None:
        """Cut off every connection."""
        for connection in self._all():
            self._abort(connection)

    def _silence_prevails(self) -> bool:
        return not self._spoken or len(self._silent) * 2 > self._max_connections

    def _all(self) -> list[Connection]:
        return list(chain(self._silent, self._spoken))

    def _abort(self, connection: Connection) -> None:
        # Forgotten at once: the transport reports its end only a turn of the loop later.
        self.discard(connection)
        connection.transport.abort()
