"""What app code starts, without executing it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from typing import TYPE_CHECKING

from .. import service
from ..errors import SetupError
from ..handle import Handle
from ..runs import RunStatus
from .clock import app_of

if TYPE_CHECKING:
    from ..definition import Workflow
    from ..extension import Workflows
    from ..store import NewRun


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A start as the app made it; `input` holds the arguments by name, defaults filled in."""

    workflow: str
    version: int
    input: Mapping[str, Any]
    key: str | None
    workspace: str | None
    delay: timedelta | None
    handle: Handle[Any]

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.input.items())
        options = {"key": self.key, "workspace": self.workspace, "delay": self.delay}
        given = ", ".join(f"{name} {value}" for name, value in options.items() if value is not None)
        return f"{self.workflow} v{self.version}({arguments})" + (f" with {given}" if given else "")


class WorkflowsFake:
    """Records what is started while it is entered: `with WorkflowsFake(workflows) as fake:`.

    Starts are stored as real, pending runs, with their keys honoured, and can be read, cancelled and awaited as ever;
    but nothing is executed in this process, neither inline nor by a tick, and no worker is woken. When it is left,
    they are ordinary pending runs, which a tick executes; the assertions can be made then too.

    What counts is what was committed: the fake hears of each start from the call that makes it, and of the commit
    from the very session whose root transaction committed. So a start whose transaction, or whose savepoint, was
    rolled back was never made, one whose transaction is still open is not made yet, and the messages of the
    assertions name both kinds apart from what counts. A start whose key an unfinished run holds already starts
    nothing, and does not count. The session's word is taken, not the database's: where tests join `db.session` to an
    outer transaction that they roll back at the end, a commit inside still counts.
    """

    def __init__(self, workflows: Workflows) -> None:
        self._workflows = workflows
        self._starts = _Starts()

    def __enter__(self) -> WorkflowsFake:
        if self._workflows.recorder is not None:
            raise SetupError("there is a WorkflowsFake already: leave it first")
        self._workflows.recorder = self._starts
        return self

    def __exit__(self, *error: object) -> None:
        self._workflows.recorder = None

    # What was started --------------------------------------------------------------------------

    def started_runs(self) -> list[StartedRun]:
        """The committed starts, in order."""
        return self._starts.committed_runs()

    def started(self, workflow: Workflow[Any, Any] | str) -> list[Mapping[str, Any]]:
        """The inputs of the committed starts of a workflow, each the arguments by name."""
        return [start.input for start in self.started_runs() if _is_of(start, workflow)]

    # Assertions --------------------------------------------------------------------------------

    def assert_started(
        self,
        workflow: Workflow[Any, Any] | str,
        predicate: Callable[[Mapping[str, Any]], bool] | None = None,
        /,
        **equals: Any,
    ) -> StartedRun:
        """A run was started with an input that the predicate accepts and that has these arguments; answer the first."""
        for start in self.started_runs():
            if _is_of(start, workflow) and _fits(start.input, predicate, equals):
                return start
        wanted = [f"{name}={value!r}" for name, value in equals.items()]
        if predicate is not None:
            wanted.append("an input that the predicate accepts")
        raise self._failure(
            f"no run of {_name(workflow)} was started" + (f" with {', '.join(wanted)}" if wanted else "")
        )

    def assert_started_times(self, workflow: Workflow[Any, Any] | str, times: int) -> None:
        """So many runs of the workflow were started."""
        found = len(self.started(workflow))
        if found != times:
            raise self._failure(f"{found} runs of {_name(workflow)} were started, not {times}")

    def assert_not_started(self, workflow: Workflow[Any, Any] | str) -> None:
        """No run of the workflow was started."""
        found = len(self.started(workflow))
        if found:
            raise self._failure(f"{found} runs of {_name(workflow)} were started, not none")

    def assert_nothing_started(self) -> None:
        """No run of any workflow was started."""
        if self.started_runs():
            raise self._failure("runs were started")

    def assert_cancelled(self, run: str | Handle[Any]) -> None:
        """The run, a handle or an id, was cancelled."""
        run_id = run if isinstance(run, str) else run.id
        with app_of(self._workflows) as runtime:
            found = service.get(runtime, run_id)
        if found.status is not RunStatus.CANCELLED and not found.cancelling:
            raise AssertionError(f"run {run_id} of {found.workflow!r} is {found.status}, not cancelled")

    def _failure(self, what: str) -> AssertionError:
        by_fate: dict[str, list[StartedRun]] = {fate: [] for fate in _FATES}
        for start in self._starts.tried:
            by_fate[self._starts.fate_of(start)].append(start)
        lines = [what]
        for fate, starts in by_fate.items():
            if starts:
                lines += [f"{fate}:", *(f"  {start}" for start in starts)]
        return AssertionError("\n".join(lines if len(lines) > 1 else [what, "Nothing was started."]))


_FATES = (
    "Started",
    "Not committed yet, db.session.commit() is missing",
    "Rolled back",
    "Not new, an unfinished run has the key",
)


class _Starts:
    """What the extension tells: every start, and which were committed."""

    def __init__(self) -> None:
        self.tried: list[StartedRun] = []
        self._committed: set[str] = set()

    def recorded(self, new_run: NewRun, handle: Handle[Any], workflow: Workflow[Any, Any]) -> None:
        start = StartedRun(
            workflow=new_run.workflow,
            version=new_run.version,
            input=workflow.codec.load_arguments(new_run.input, where=workflow.where),
            key=new_run.key,
            workspace=new_run.workspace or None,
            delay=None if new_run.delay_ms is None else timedelta(milliseconds=new_run.delay_ms),
            handle=handle,
        )
        self.tried.append(start)

    def committed(self, run_ids: Sequence[str]) -> None:
        self._committed.update(run_ids)

    def committed_runs(self) -> list[StartedRun]:
        return [start for start in self.tried if self.fate_of(start) == "Started"]

    def fate_of(self, start: StartedRun) -> str:
        handle = start.handle
        started, pending, rolled_back, not_new = _FATES
        if not handle.created:
            return not_new
        if handle.id in self._committed:
            return started
        return pending if handle._runtime.sessions.is_pending(handle.id) else rolled_back


def _is_of(start: StartedRun, workflow: Workflow[Any, Any] | str) -> bool:
    if isinstance(workflow, str):
        return start.workflow == workflow
    return (start.workflow, start.version) == (workflow.name, workflow.version)


def _name(workflow: Workflow[Any, Any] | str) -> str:
    return repr(workflow) if isinstance(workflow, str) else f"{workflow.name!r} v{workflow.version}"


def _fits(
    input: Mapping[str, Any], predicate: Callable[[Mapping[str, Any]], bool] | None, equals: Mapping[str, Any]
) -> bool:
    if any(name not in input or input[name] != value for name, value in equals.items()):
        return False
    return predicate is None or bool(predicate(input))
