"""The threaded worker.

    claimer    claims due runs in batches, into free threads first; keeps house
    executors  `concurrency` threads, each executing one run at a time; one more for each that is stuck
    leases     renews what is executed (leases.py)
    listener   wakes the claimer (wakeups.py)
    main       waits for signals, so that they are heard whatever the database does

While executions are short the claimer also takes runs ahead, so that no thread waits for a round trip. They stay
`pending`, are due again with their lease, and go back when they were not begun within a second.

A thread is *stuck* while a call of its run goes on that has timed out: threads cannot be ended. Another takes its
place, and nothing else counts it. When as many are stuck as may run at once, and one more is, the process is of no use
any more: it finishes what is not stuck, and ends.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from queue import Empty
from queue import SimpleQueue
from typing import NamedTuple
from typing import TYPE_CHECKING

import sqlalchemy as sa

from .cause import cause_of
from .durations import from_ms
from .durations import instant_ms
from .engine import Engine
from .errors import SetupError
from .failures import describe
from .failures import dumps
from .leases import LeaseKeeper
from .names import check_label
from .names import new_id
from .service import prune
from .store import Change
from .store import ClaimedRun
from .store import LeaseGone
from .store import Scope
from .store import StoredStep
from .wakeups import Listener

if TYPE_CHECKING:
    from .runtime import Runtime

logger = logging.getLogger("flask_workflows")

HEARTBEAT_SECONDS = 10.0
SWEEP_SECONDS = 60.0
FORGET_SECONDS = 3_600.0
#: Claimed ahead and not begun for this long, a run goes back.
AHEAD_SECONDS = 1.0
#: A run on its last chance is waited for no longer than this at a time.
ROOM_SECONDS = 60.0
#: What the database gets for each part of a goodbye.
GOODBYE_SECONDS = 5.0
#: Runs are claimed ahead only while executions take less than this, on average.
SHORT_MS = 50.0
MOST_AHEAD = 64
#: A run too old for every registered version fails when it has been due for this long.
OUTDATED_MS = 300_000
KEEP_WORKERS_MS = 24 * 3_600_000


class Job(NamedTuple):
    run: ClaimedRun
    stored: Sequence[StoredStep]


class Worker:
    """One worker process, or one thread of yours: `run` returns when it was stopped.

    `queues` are those it serves, all where empty. Signals are handled where `run` is called on the main thread;
    elsewhere end it with `stop`.
    """

    def __init__(
        self, runtime: Runtime, *, concurrency: int | None = None, queues: Sequence[str] = (), name: str | None = None
    ) -> None:
        self.id = new_id()
        self.name = f"{socket.gethostname()}:{os.getpid()}" if name is None else check_label(name, "name")
        self.concurrency = concurrency or runtime.config.concurrency
        self.queues = tuple(check_label(queue, "queue") for queue in queues)
        self._runtime = runtime
        self._store = runtime.store
        self._engine = Engine(runtime)
        self._scope = Scope.of(runtime.registry.ranges(), self.queues)
        self._keeper = LeaseKeeper(self._store, self._fit_threads)
        self._executors: list[threading.Thread] = []
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        #: Wakes the main thread. A queue, since a signal handler may interrupt whoever holds an event's lock.
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._signalled = False
        self._count = threading.Lock()
        self._numbers = itertools.count()
        #: Claimed and not settled, whether begun or not.
        self._outstanding = 0
        #: Executions of those whose thread is stuck.
        self._stuck = 0
        #: Executors told to end.
        self._surplus = 0
        self._hungry_below = 0
        self._average_ms = SHORT_MS
        self._alone = False
        #: Since when nothing is claimed, so that this worker becomes idle, and until when not to try that again.
        self._room_since = self._no_room_before = 0.0
        self._ahead_at = self._settled_at = 0.0
        self._careful_at = 0.0
        self._beat_at = self._swept_at = self._forgot_at = float("-inf")
        self._strays = False
        self._pruning = False
        self._pruned_at = datetime.min.replace(tzinfo=UTC)
        self._booted = False
        self._failed: BaseException | None = None
        #: Threads were still busy when `run` returned; their runs were handed back.
        self.abandoned = False

    # Life ----------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until stopped; answer the exit code: 0 after a requested stop, 1 when a part of it died or is stuck.

        Raises `SetupError` or `SchemaError` where it cannot begin.
        """
        if self._runtime.apart:
            raise SetupError(
                'this app keeps its runs in the process (WORKFLOWS_STORE="memory" or sqlite://), where no worker '
                'can see them; use a database file or server, or WORKFLOWS_EXECUTION="inline"'
            )
        restore = self._handle_signals()
        try:
            if not self._boot():
                return 0
            return self._work()
        finally:
            restore()

    def stop(self) -> None:
        """Stop claiming, finish or hand back what runs, and let `run` return. Safe from any thread."""
        self._stopping.set()
        self._calls.put(None)
        self._wake.set()

    def wake(self) -> None:
        """Look for due runs now."""
        self._wake.set()

    def _handle_signals(self) -> Callable[[], None]:
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def handle(number: int, frame: object) -> None:
            if self._signalled or self._stopping.is_set():
                os.write(2, b"second signal: leaving at once, unfinished runs are taken over when their leases end\n")
                os._exit(128 + number)
            self._signalled = True
            self._calls.put(None)

        for number in before:
            signal.signal(number, handle)

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return restore

    def _boot(self) -> bool:
        """Wait until the database answered, on a thread, as it may also fall silent; false when stopped before."""
        self._thread(self._await_database, "workflows-boot").start()
        while not self._told_to_stop(within=1.0):
            if self._failed is not None:
                raise self._failed
            if self._booted:
                return True
        return False

    def _await_database(self) -> None:
        pause = 0.1
        try:
            while not self._stopping.is_set() and not self._booted:
                try:
                    self._runtime.check_schema()
                    self._beat()
                    self._warn()
                    self._booted = True
                except Exception as error:
                    cause = getattr(error, "orig", None) or error.__cause__ or error
                    if not self._store.dialect.is_transient(getattr(cause, "orig", None) or cause):
                        raise
                    self._store.complain("the database does not answer, waiting for it", error)
                    self._stopping.wait(pause)
                    pause = min(pause * 2, 2.0)
        except BaseException as error:
            self._failed = error
        self._calls.put(None)

    def _told_to_stop(self, *, within: float = 0.0) -> bool:
        """Whether to stop; the main thread waits here, and passes on what a signal handler left."""
        with suppress(Empty):
            self._calls.get(timeout=within) if within else self._calls.get_nowait()
        if self._signalled:
            self._stopping.set()
        return self._stopping.is_set()

    def _warn(self) -> None:
        """Say at boot what will keep runs from moving."""
        orphans = self._runtime.orphans()
        if orphans:
            logger.warning(
                "no code is registered here for unfinished runs of %s: they wait for a worker that has it; import the "
                "modules that declare it, or list them in WORKFLOWS_IMPORTS",
                ", ".join(orphans),
            )
        room = _pool_size(self._runtime.app_engine)
        if room is not None and room < self.concurrency:
            logger.warning(
                "%d threads share %d connections of the app's pool: steps that use db.session wait for one another; "
                'set SQLALCHEMY_ENGINE_OPTIONS = {"pool_size": %d} (leases and records have connections of their own)',
                self.concurrency,
                room,
                self.concurrency,
            )

    def _work(self) -> int:
        self._store.connections.keep(self.concurrency + 2)
        claimer = self._thread(self._claim_loop, "workflows-claimer")
        listener = self._listener()
        self._runtime.wakers.add(self._wake)
        # An earlier worker of this process may have given up at its end.
        self._store.giving_up.clear()
        try:
            self._keeper.__enter__()
            self._fit_threads()
            claimer.start()
            if listener is not None:
                listener.start()
            logger.info(
                "worker %s (%s) serves %s with %d threads",
                self.name,
                self.id,
                ", ".join(self.queues) or "all queues",
                self.concurrency,
            )
            self._watch(claimer)
            self._drain(claimer)
        finally:
            self._runtime.wakers.discard(self._wake)
            if listener is not None:
                listener.stop()
            self._keeper.stop()
        return 1 if self._failed is not None else 0

    def _thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=target, name=name, daemon=True)

    def _listener(self) -> Listener | None:
        if not self._runtime.config.listen and self._store.dialect.listens:
            return None
        return Listener(self._store, self._wake.set, url=self._runtime.config.listen_url)

    def _watch(self, claimer: threading.Thread) -> None:
        """Wait for a stop. A worker whose claimer or lease thread died does nothing more of use: it ends."""
        while not self._told_to_stop(within=1.0):
            with self._count:
                dead = [thread.name for thread in (*self._executors, claimer) if not thread.is_alive()]
            if dead or not self._keeper.is_alive():
                logger.critical("the worker's threads died (%s), it stops", ", ".join(dead) or "leases")
                self._failed = SetupError("a thread of the worker died")
                self._stopping.set()

    def _drain(self, claimer: threading.Thread) -> None:
        """Let what runs finish for a while, hand back the rest."""
        self._wake.set()
        with self._count:
            # No thread is added from here on, as it is stopping.
            threads = tuple(self._executors)
        for _ in threads:
            self._jobs.put(None)
        deadline = time.monotonic() + self._runtime.config.drain_secs
        helper = self._thread(self._hand_back_unbegun, "workflows-hand-back")
        # Even with no time to drain: a claim under way would leave runs that nobody executes.
        patience = time.monotonic() + GOODBYE_SECONDS
        claimer.join(GOODBYE_SECONDS)
        helper.start()
        helper.join(max(0.0, patience - time.monotonic()))
        while time.monotonic() < deadline and (alive := [thread for thread in threads if thread.is_alive()]):
            if self._failed is not None and len(alive) <= self._stuck_now():
                # It ends for these very calls, which nobody knows an end of.
                break
            alive[0].join(min(0.1, max(0.0, deadline - time.monotonic())))
        self.abandoned = any(thread.is_alive() for thread in threads)
        if self._runtime.wakers <= {self._wake}:
            # Otherwise another worker of this process still counts on it.
            self._store.giving_up.set()
        goodbye = self._thread(self._say_goodbye, "workflows-goodbye")
        goodbye.start()
        goodbye.join(GOODBYE_SECONDS)

    def _say_goodbye(self) -> None:
        try:
            left = self._keeper.live()
            for execution in left:
                # Before they are anybody else's, so that none of them begins another step.
                execution.lose()
            # Not those that are stuck: another worker would begin the next attempt while the call goes on here. Their
            # leases end after this process did.
            held = [(execution.run.id, execution.run.epoch) for execution in left if not execution.stuck]
            if held:
                logger.info("handing back %d runs that did not finish in time", len(held))
                self._store.hand_back(held)
            self._runtime.tally.flush()
            self._store.stop_worker(self.id)
        except Exception as error:
            logger.warning("could not say goodbye to the database: %s", error)

    # Executing -----------------------------------------------------------------------------

    def _execute_jobs(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                self._leave()
                return
            began = time.monotonic()
            try:
                self._execute(job)
            except BaseException:
                # Nothing of a run may take its thread with it, not even a log handler that raises.
                _log_quietly("an execution ended in an error of the engine's own")
            finally:
                self._settled_at = time.monotonic()
                elapsed = (self._settled_at - began) * 1000
                with self._count:
                    self._average_ms += (elapsed - self._average_ms) * 0.1
                    self._outstanding -= 1
                if self._stuck:
                    self._fit_threads()
                if self._busy < self._hungry_below:
                    self._wake.set()

    @property
    def _busy(self) -> int:
        """Runs that are claimed and not settled, but for those whose thread is stuck."""
        return self._outstanding - self._stuck

    def _stuck_now(self) -> int:
        return sum(execution.stuck for execution in self._keeper.live())

    def _fit_threads(self) -> None:
        """Have so many executors that `concurrency` are free of stuck calls, but never more than twice as many."""
        with self._count:
            stuck = self._stuck_now()
            freed, self._stuck = stuck > self._stuck, stuck
            if self._stopping.is_set():
                return
            missing = min(self.concurrency + stuck, 2 * self.concurrency) - (len(self._executors) - self._surplus)
            for _ in range(missing):
                thread = self._thread(self._execute_jobs, f"workflows-{next(self._numbers)}")
                thread.start()
                self._executors.append(thread)
            for _ in range(-missing):
                self._surplus += 1
                self._jobs.put(None)
        if stuck > self.concurrency:
            self._failed = SetupError("too many threads of the worker are stuck")
            self.stop()
            logger.critical(
                "%d calls of steps that timed out go on in this worker, more than it may have threads for: it stops; "
                "pass time-outs to the libraries that these steps call",
                stuck,
            )
        if freed:
            self._wake.set()

    def _leave(self) -> None:
        """End this executor, which is one too many; all of them are when the worker stops."""
        with self._count:
            if self._surplus:
                self._surplus -= 1
                self._executors.remove(threading.current_thread())

    def _execute(self, job: Job) -> None:
        if self._stopping.is_set() or self._store.ticks() - job.run.ticks > self._store.lease_ms / 2:
            # It waited behind others for so long that it may be somebody else's soon, or by now.
            self._store.hand_back([(job.run.id, job.run.epoch)])
            return
        execution = self._engine.begin(job.run, job.stored)
        self._keeper.add(execution)
        try:
            status = self._engine.execute(execution, self.id)
        finally:
            self._keeper.remove(execution)
        if status == "waiting":
            # What it waits for may be stored already.
            self._wake.set()

    # Claiming ------------------------------------------------------------------------------

    def _claim_loop(self) -> None:
        pause = 0.05
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                more = self._round()
                pause = 0.05
            except Exception as error:
                if not self._store.dialect.is_transient(error):
                    logger.exception("claiming failed, trying again")
                else:
                    self._store.complain("nothing can be claimed, trying again", error)
                self._strays = True
                self._stopping.wait(pause)
                pause = min(pause * 2, 2.0)
                continue
            if not more:
                self._wake.wait(self._patience())

    def _patience(self) -> float:
        """How long to wait for a wake-up: the heartbeat and what waits behind others allow less than a slow poll."""
        longest = AHEAD_SECONDS if self._busy > self.concurrency else HEARTBEAT_SECONDS
        return min(self._runtime.config.poll_interval_ms / 1000, longest)

    def _round(self) -> bool:
        """Claim what there is room for; true when there is more room and probably more to claim."""
        if self._strays:
            # Counted first: while they are listed one may end and another begin, but none is added.
            outstanding = self._outstanding
            known = [execution.run.id for execution in self._keeper.live()]
            if outstanding == len(known):
                self._store.hand_back_strays(self.id, known)
                self._strays = False
        self._keep_house()
        self._return_unbegun()
        self._fit_threads()
        with self._count:
            busy = self._busy
            self._hungry_below = 0
        if self._alone or self._room_since:
            if busy:
                self._be_hungry(1)
                return False
            self._alone, self._room_since = False, 0.0
        free = self.concurrency - busy
        more = self._claim_free(free, alone=busy == 0) if free > 0 else self._claim_ahead(busy)
        if self._store.events_wait:
            self._store.events_wait = False
            more = self._runtime.events.match_all() or more
        return more

    def _claim_free(self, free: int, *, alone: bool) -> bool:
        self._careful_at = time.monotonic()
        batch = self._store.claim(self._scope, self.id, free, alone=alone)
        self._runtime.tally.claimed(batch)
        lone = next((run for run in batch if run.last_chance), None)
        if lone is not None:
            # It may take its worker with it: nobody else is to be aboard.
            self._alone = True
            self._store.hand_back([(run.id, run.epoch) for run in batch if run is not lone])
            batch = [lone]
        self._dispatch(batch)
        return len(batch) == free

    def _claim_ahead(self, busy: int) -> bool:
        room = self._room_ahead() - (busy - self.concurrency)
        if time.monotonic() - self._careful_at > self._runtime.config.poll_interval_ms / 1000:
            # Runs that lost a worker are only taken into free threads: let one become free.
            self._be_hungry(self.concurrency)
            return False
        again_below = self.concurrency + self._room_ahead() // 2
        if room <= 0:
            self._be_hungry(again_below)
            return False
        batch = self._store.claim(self._scope, self.id, room, begin=False)
        self._ahead_at = time.monotonic()
        self._dispatch(batch)
        self._be_hungry(again_below if len(batch) == room else self.concurrency)
        return False

    def _room_ahead(self) -> int:
        if self._average_ms >= SHORT_MS or self._alone or self._room_since:
            return 0
        return min(MOST_AHEAD, int(self.concurrency * SHORT_MS / max(self._average_ms, 1.0)))

    def _be_hungry(self, below: int) -> None:
        """Be woken when this worker is busy with fewer than that many runs; at once if it is so already."""
        with self._count:
            self._hungry_below = below
            if self._busy < below:
                self._wake.set()

    def _dispatch(self, batch: Sequence[ClaimedRun]) -> None:
        if self._stopping.is_set():
            self._store.hand_back([(run.id, run.epoch) for run in batch])
            return
        histories = self._store.histories([run.id for run in batch if not run.fresh])
        with self._count:
            self._outstanding += len(batch)
        for run in batch:
            self._jobs.put(Job(run, histories.get(run.id, ())))

    def _return_unbegun(self) -> None:
        """Give back what waits behind runs that turned out long: nothing was claimed or settled for a while."""
        quiet = time.monotonic() - max(self._ahead_at, self._settled_at)
        if self._busy > self.concurrency and quiet > AHEAD_SECONDS:
            self._average_ms = 2 * SHORT_MS
            self._hand_back_unbegun()

    def _hand_back_unbegun(self) -> None:
        waiting: list[Job] = []
        ends = 0
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is None:
                ends += 1
            else:
                waiting.append(job)
        for _ in range(ends):
            self._jobs.put(None)
        if waiting:
            try:
                self._store.hand_back([(job.run.id, job.run.epoch) for job in waiting])
            except Exception as error:
                self._store.complain("runs claimed ahead go back when their leases end", error)
            with self._count:
                self._outstanding -= len(waiting)

    # Keeping house -------------------------------------------------------------------------

    def _keep_house(self) -> None:
        now = time.monotonic()
        if now - self._beat_at >= HEARTBEAT_SECONDS:
            self._beat()
            self._runtime.tally.flush()
            self._make_room(now)
        if now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            for workflow in self._store.end_cancelled():
                self._runtime.tally.ended(workflow, "cancelled")
            self._fail_outdated()
            self._prune()
        if now - self._forgot_at >= FORGET_SECONDS:
            self._forgot_at = now
            self._store.forget_workers(KEEP_WORKERS_MS)

    def _prune(self) -> None:
        """Once a day, by the one worker of all that moves the mark."""
        config = self._runtime.config
        if self._pruning:
            return
        now = from_ms(self._store.now())
        at = datetime.combine(now.date(), config.prune_at, UTC)
        last = at if at <= now else at - timedelta(days=1)
        if last <= self._pruned_at or not self._runtime.events.move_mark(
            "prune", instant_ms(last, what="the time of pruning")
        ):
            self._pruned_at = last
            return
        self._pruned_at = last
        self._pruning = True
        self._thread(self._prune_now, "workflows-prune").start()

    def _prune_now(self) -> None:
        try:
            with self._runtime.app.app_context():
                logger.info("pruned %d runs", prune(self._runtime))
        except Exception as error:
            self._store.complain("pruning was broken off, it goes on tomorrow", error)
        finally:
            self._pruning = False

    def _make_room(self, now: float) -> None:
        """Claim nothing while a run on its last chance waits for an idle worker; but not for ever behind a long step."""
        if not self._busy or now < self._no_room_before or not self._store.care_is_due(self._scope):
            self._room_since = 0.0
        elif not self._room_since:
            self._room_since = now
        elif now - self._room_since > ROOM_SECONDS:
            self._room_since = 0.0
            self._no_room_before = now + 5 * ROOM_SECONDS

    def _beat(self) -> None:
        self._beat_at = time.monotonic()
        self._store.save_worker(
            id=self.id,
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=json.dumps(list(self.queues)) if self.queues else None,
            workflows=json.dumps(self._runtime.registry.ranges()),
            concurrency=self.concurrency,
        )

    def _fail_outdated(self) -> None:
        """Fail runs older than every version that resumes them, where no live worker knows better."""
        for name, oldest in self._runtime.registry.oldest().items():
            if oldest == 1:
                continue
            overdue = self._store.overdue_below(name, oldest, OUTDATED_MS)
            if not overdue:
                continue
            advertised = [
                tuple(item)
                for text in self._store.live_workers(int(3 * HEARTBEAT_SECONDS * 1000))
                for item in json.loads(text)
            ]
            for run_id, version, epoch in overdue:
                if not any(known == name and low <= version <= high for known, low, high in advertised):
                    self._fail_one(run_id, name, version, oldest, epoch)

    def _fail_one(self, run_id: str, name: str, version: int, oldest: int, epoch: int) -> None:
        error = SetupError(
            f"no live worker resumes {name!r} version {version}, the oldest that is resumed is {oldest}: register the "
            f"old code again, or declare min_version={version} on code that can take it over; then retry the run"
        )
        described = describe(error, "version", frames=False)
        change = Change("failed", error=dumps(described), cause=cause_of(name, described), finished=True)
        try:
            self._store.settle(run_id, epoch, change, idle=True)
            self._runtime.tally.ended(name, "failed")
            logger.warning("run %s failed: %s", run_id, error)
        except LeaseGone:
            logger.debug("run %s was taken meanwhile", run_id)


def _pool_size(engine: sa.Engine) -> int | None:
    """How many connections the app's pool lends at once; null where there is no bound."""
    pool = engine.pool
    if not isinstance(pool, sa.pool.QueuePool) or pool._max_overflow < 0:
        return None
    return pool.size() + pool._max_overflow


def _log_quietly(message: str) -> None:
    try:
        logger.exception(message)
    except Exception:
        os.write(2, f"flask_workflows: {message}, and it could not be logged\n".encode())
