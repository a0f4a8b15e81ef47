"""The app's own `db.session`: starting runs in its transaction, committing steps with its writes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from threading import get_ident
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
import sqlalchemy.orm as sa_orm
from flask import has_app_context

from . import models
from .errors import InlineNeedsCommit
from .errors import RunFinished
from .errors import RunNotFound
from .errors import SessionBusy
from .errors import TransactionalRefused
from .store import key_busy
from .store import NewEvent
from .store import NewRun
from .store import Store
from .store.events import Events

logger = logging.getLogger("flask_workflows")

_INFO = "flask_workflows"
_COMMITTING = "flask_workflows_committing"


class Started(NamedTuple):
    """A run, and the savepoints it was started in: it vanishes with any of them."""

    run: NewRun
    within: tuple[sa_orm.SessionTransaction, ...]


class Emitted(NamedTuple):
    """An event, likewise."""

    event: NewEvent
    within: tuple[sa_orm.SessionTransaction, ...]


@dataclass
class Pending:
    """What a session's open transaction has started. One for each session, kept in `session.info`."""

    started: list[Started] = field(default_factory=list)
    emitted: list[Emitted] = field(default_factory=list)
    committed: bool = False
    rolled_back: bool = False

    @property
    def ids(self) -> list[str]:
        return [started.run.id for started in self.started]


class Sessions:
    """`db.session` as the engine uses it.

    `on_commit` is called with the ids started, after the root transaction of a session committed. `apart` says that
    the store is another database than the session's; `inline`, whether `on_commit` executes runs.
    """

    def __init__(
        self,
        db: Any,
        store: Store,
        events: Events,
        on_commit: Callable[[Sequence[str]], None],
        *,
        apart: bool,
        inline: Callable[[], bool],
    ) -> None:
        self._db = db
        self._store = store
        self._events = events
        self._on_commit = on_commit
        self._apart = apart
        self._inline = inline
        #: Threads on which a transactional step runs.
        self._guarded: set[int] = set()
        self._guards = False

    @property
    def _scoped(self) -> sa_orm.scoped_session[Any]:
        # Looked up each time, as tests put another in its place.
        return self._db.session  # type: ignore[no-any-return]

    # Starting ------------------------------------------------------------------------------

    def start(self, new_runs: Sequence[NewRun]) -> dict[str, str]:
        """Insert runs in the session's transaction; answer the older runs that hold the key of one of them.

        Nothing is committed. Raises `KeyBusy` when a rival's uncommitted start of the same key ends in a deadlock,
        a lock time-out or a serialization failure.
        """
        session = self._scoped()
        pending = self._watch(session)
        if self._apart:
            session.connection()
            return self._defer(session, pending, new_runs)
        with session.no_autoflush:
            connection = session.connection(bind_arguments={"clause": models.runs})
            self._refuse_joined(session, connection)
            holders = self._insert(connection, new_runs)
        within = _savepoints(session)
        pending.started.extend(Started(run, within) for run in new_runs if run.id not in holders)
        return holders

    def _defer(self, session: sa_orm.Session, pending: Pending, new_runs: Sequence[NewRun]) -> dict[str, str]:
        """Keep runs until the commit, where the store is another database."""
        holders: dict[str, str] = {}
        within = _savepoints(session)
        for run in new_runs:
            mine = [earlier.run.id for earlier in pending.started if _same_key(earlier.run, run)]
            holder = mine[0] if mine else self._store.find_live_key(run)
            if holder is None:
                pending.started.append(Started(run, within))
            else:
                holders[run.id] = holder
        return holders

    def emit(self, event: NewEvent) -> None:
        """Insert an event in the session's transaction. Raises `RunFinished` for a message nobody would read."""
        session = self._scoped()
        pending = self._watch(session)
        if self._apart:
            if event.run_id is not None and event.run_id not in pending.ids:
                refuse_finished(event.run_id, self._events.look_finished(event.run_id))
            session.connection()
            pending.emitted.append(Emitted(event, _savepoints(session)))
            return
        with session.no_autoflush:
            connection = session.connection(bind_arguments={"clause": models.runs})
            self._refuse_joined(session, connection)
            if event.run_id is not None:
                refuse_finished(event.run_id, self._events.is_finished(connection, event.run_id))
            self._events.insert(connection, event)
        pending.emitted.append(Emitted(event, _savepoints(session)))

    def _refuse_joined(self, session: sa_orm.Session, connection: sa.Connection) -> None:
        if self._inline() and connection.get_transaction() is not None and _joined(session):
            raise InlineNeedsCommit(
                'WORKFLOWS_EXECUTION="inline" runs workflows after the commit, but this session is joined to an '
                "outer transaction that is never committed. In such a test let the session commit for real and "
                'empty the tables afterwards, or use WORKFLOWS_STORE="memory"'
            )

    def _insert(self, connection: sa.Connection, new_runs: Sequence[NewRun]) -> dict[str, str]:
        keyed = any(run.key is not None for run in new_runs)
        try:
            if keyed and self._store.dialect.name != "sqlite" and not self._store.dialect.autocommits(connection):
                # A savepoint, so that a refused key leaves the caller's transaction usable.
                with connection.begin_nested():
                    return self._store.insert(connection, new_runs)
            return self._store.insert(connection, new_runs)
        except sa_exc.DBAPIError as error:
            if error.orig is not None and self._store.dialect.is_blocked(error.orig):
                raise key_busy(new_runs[0], error.orig) from error
            raise

    def is_pending(self, run_id: str) -> bool:
        """Whether this thread's session started the run and has not committed yet."""
        session = self.current() if has_app_context() else None
        return session is not None and _INFO in session.info and run_id in self._pending(session).ids

    def refuse_if_busy(self, what: str) -> None:
        """Raise `SessionBusy` where a transaction of our own would wait for this thread's session."""
        if self.holding_lock() is not None:
            raise SessionBusy(
                f"{what} needs a transaction of its own, but db.session holds SQLite's only write lock: commit or "
                "roll back first, or use start() or emit(), which join the session's transaction"
            )

    def holding_lock(self) -> sa.Connection | None:
        """The session's connection where it holds SQLite's only write lock, which any other would wait for."""
        holds = self._store.dialect.holds_write_lock
        if holds is None or self._apart or not self._scoped.registry.has():
            return None
        session = self._scoped()
        if not session.in_transaction():
            return None
        connection = self._connection(session)
        return connection if holds(connection) else None

    def _pending(self, session: sa_orm.Session) -> Pending:
        return session.info.setdefault(_INFO, Pending())  # type: ignore[no-any-return]

    def _watch(self, session: sa_orm.Session) -> Pending:
        if _INFO not in session.info:
            sa.event.listen(session, "after_commit", self._after_commit)
            sa.event.listen(session, "after_rollback", self._after_rollback)
            sa.event.listen(session, "after_soft_rollback", self._after_savepoint_rollback)
            sa.event.listen(session, "after_transaction_end", self._after_end)
        return self._pending(session)

    def _after_commit(self, session: sa_orm.Session) -> None:
        # Also called for a released savepoint, which commits nothing yet.
        if not session.in_nested_transaction():
            self._pending(session).committed = True

    def _after_rollback(self, session: sa_orm.Session) -> None:
        if not session.in_nested_transaction():
            self._pending(session).rolled_back = True

    def _after_savepoint_rollback(self, session: sa_orm.Session, transaction: sa_orm.SessionTransaction) -> None:
        if transaction.nested:
            pending = self._pending(session)
            pending.started = [started for started in pending.started if transaction not in started.within]
            pending.emitted = [emitted for emitted in pending.emitted if transaction not in emitted.within]

    def _after_end(self, session: sa_orm.Session, transaction: sa_orm.SessionTransaction) -> None:
        if transaction.parent is not None:
            return
        pending = session.info.get(_INFO)
        if not pending:
            return
        session.info[_INFO] = Pending()
        if not pending.started and not pending.emitted:
            return
        if pending.committed:
            # The commit has happened; whatever fails from here on must not look as if it had not.
            try:
                if self._apart:
                    self._apply(pending)
                self._on_commit(pending.ids)
            except Exception:
                logger.exception("runs were started, but not announced: %s", ", ".join(pending.ids))
        elif pending.started and not pending.rolled_back:
            logger.warning(
                "the session ended without a commit, so these runs were never started: %s; call db.session.commit() "
                "after start(), or use spawn()",
                ", ".join(pending.ids),
            )

    def _apply(self, pending: Pending) -> None:
        if pending.started:
            self._store.spawn([started.run for started in pending.started])
        for emitted in pending.emitted:
            self._events.deliver(emitted.event)

    # Steps ---------------------------------------------------------------------------------

    def current(self) -> sa_orm.Session | None:
        """This context's session, if it was used."""
        return self._scoped() if self._scoped.registry.has() else None

    def remove(self) -> None:
        """End the session: roll back what is open and give its connection back."""
        self._guarded.discard(get_ident())
        if self._scoped.registry.has():
            try:
                self._scoped.remove()
            except Exception as error:
                # A dead connection cannot be rolled back, and needs not.
                logger.debug("the session could not be closed: %s", error)
                self._scoped.registry.clear()

    def holds_writes(self) -> bool:
        """Whether the session has changes that are not committed, asking the database where need be."""
        session = self.current()
        if session is None:
            return False
        if _has_changes(session):
            return True
        if not session.in_transaction() or self._apart:
            return False
        try:
            return self._store.dialect.holds_writes(self._connection(session))
        except Exception:
            # A broken transaction commits nothing.
            return False

    def may_commit(self, *, transactional: bool) -> bool:
        """Whether a step's session has something that must be committed with its record."""
        session = self.current()
        if session is None:
            return False
        if _has_changes(session):
            return True
        if not session.in_transaction():
            return False
        if not session.is_active or self._store.dialect.is_broken(self._connection(session)):
            if transactional:
                raise TransactionalRefused(
                    "a statement of a transactional step failed and the step went on, but its transaction cannot: let "
                    "the error out, or put what may fail into `with db.session.begin_nested():`"
                )
            logger.warning(
                "a step left a failed transaction in db.session: nothing it wrote there is committed; call "
                "db.session.rollback() where the error is caught"
            )
            return False
        return self._store.dialect.may_commit(self._connection(session))

    def commit_step(self, record: Callable[[Any], str | None], *, transactional: bool) -> None:
        """Flush the session, write the step's record through its connection, and commit both.

        Rolls back and raises whatever went wrong.
        """
        session = self._scoped()
        try:
            session.flush()
            if self._apart:
                session.commit()
                record(None)
                return
            isolation = record(self._connection(session))
            if transactional and isolation not in (None, "read committed"):
                raise TransactionalRefused(
                    f"a transactional step needs READ COMMITTED, this session has {isolation}: a stricter one cannot "
                    "see that the run was taken over; set the isolation level for other code only"
                )
            session.info[_COMMITTING] = True
            self._store.commit(session.commit)
        except BaseException:
            session.info.pop(_COMMITTING, None)
            session.rollback()
            raise

    def guard(self) -> None:
        """Watch over a transactional step until `remove`: one transaction, on one database, ended by the engine."""
        if not self._guards:
            self._guards = True
            # On all sessions, as the step may remove its own and get another.
            sa.event.listen(self._scoped, "before_commit", self._refuse_commit)
            sa.event.listen(self._scoped, "after_begin", self._refuse_begin)
        self._guarded.add(get_ident())

    def _refuse_commit(self, session: sa_orm.Session) -> None:
        guarded = get_ident() in self._guarded and not session.info.get(_COMMITTING)
        if guarded and not session.in_nested_transaction():
            raise TransactionalRefused(
                "a transactional step must not call db.session.commit(): its writes commit together with its record "
                "when it returns; leave the commit out"
            )

    def _refuse_begin(self, session: sa_orm.Session, transaction: object, connection: sa.Connection) -> None:
        if get_ident() not in self._guarded:
            return
        default: Any = session.get_bind(clause=models.runs)
        if connection.engine.url != getattr(default, "engine", default).url:
            raise TransactionalRefused(
                f"a transactional step may only use the database of the runs, not {connection.engine.url!r}: two "
                "databases cannot commit together"
            )
        if self._store.dialect.autocommits(connection):
            raise TransactionalRefused(
                "a transactional step needs a transaction, but db.session commits each statement by itself: leave "
                'isolation_level="AUTOCOMMIT" out, or give it to other code only'
            )

    def _connection(self, session: sa_orm.Session) -> sa.Connection:
        return session.connection(bind_arguments={"clause": models.runs})


def refuse_finished(run_id: str, finished: bool | None) -> None:
    """Raise where a message would never be read."""
    if finished is None:
        raise RunNotFound(f"there is no run {run_id} to send to")
    if finished:
        raise RunFinished(f"run {run_id} has finished: nobody would read the message")


def _savepoints(session: sa_orm.Session) -> tuple[sa_orm.SessionTransaction, ...]:
    """The open savepoints, the innermost first."""
    found = []
    transaction = session.get_nested_transaction()
    while transaction is not None and transaction.nested:
        found.append(transaction)
        transaction = transaction.parent
    return tuple(found)


def _same_key(one: NewRun, other: NewRun) -> bool:
    return one.key is not None and (one.workflow, one.workspace, one.key) == (
        other.workflow,
        other.workspace,
        other.key,
    )


def _has_changes(session: sa_orm.Session) -> bool:
    return bool(session.new or session.deleted or session.dirty)


def _joined(session: sa_orm.Session) -> bool:
    """Whether the session works on a connection that somebody else began a transaction on."""
    bind = session.get_bind(clause=models.runs)
    return isinstance(bind, sa.Connection) and bind.in_transaction()
