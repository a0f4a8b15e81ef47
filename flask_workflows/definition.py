"""What was declared: workflows and steps, and what can be asked of them where they are used."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from datetime import datetime
from datetime import timedelta
from types import CellType
from typing import Any
from typing import Generic
from typing import ParamSpec
from typing import TYPE_CHECKING
from typing import TypeVar

from . import context
from .durations import instant_ms
from .durations import to_ms
from .errors import DefinitionError
from .errors import InvalidDuration
from .names import check_label
from .names import check_step_name
from .names import check_workflow_name
from .retry import Retry
from .values import CallCodec

if TYPE_CHECKING:
    from .extension import Workflows
    from .handle import Handle

P = ParamSpec("P")
R = TypeVar("R")


def place_of(function: Callable[..., Any]) -> str:
    """`file:line` of a function, for messages."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)


def same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """The same code at the same place, seen twice: a reload, or one module under two names."""
    return one is other or _identity(one) == _identity(other)


def _identity(function: Callable[..., Any]) -> tuple[object, ...]:
    """Where a function is from; what it closes over tells two apart that one decorator made without wrapping them."""
    cells = getattr(function, "__closure__", None) or ()
    closed_over = [place_of(cell.cell_contents) for cell in cells if _holds_function(cell)]
    return place_of(function), getattr(function, "__qualname__", None), closed_over


def _holds_function(cell: CellType) -> bool:
    try:
        return inspect.isfunction(cell.cell_contents)
    except ValueError:
        # Empty: its function is not defined yet.
        return False


def _named(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__name__', type(function).__name__)} at {place_of(function)}"


class Step(Generic[P, R]):
    """A step function. Called inside a run its result is stored; outside one it is a plain call."""

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, R]

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        retry: Retry | None = None,
        raises: type[BaseException] | tuple[type[BaseException], ...] = (),
        transactional: bool = False,
        timeout: timedelta | float | None = None,
    ) -> None:
        if not callable(function):
            raise DefinitionError(f"@step needs a function, not {function!r}")
        named = _named(function)
        if retry is not None and not isinstance(retry, Retry):
            raise DefinitionError(f"the step {named} has retry={retry!r}: write retry=Retry(attempts=…)")
        functools.update_wrapper(self, function)
        self.function = function
        self.place = place_of(function)
        self.name = check_step_name(name if name is not None else getattr(function, "__name__", None), named)
        self.retry = retry if retry is not None else Retry()
        self.raises = _exceptions(raises, named)
        self.transactional = transactional
        #: How long a call may take, in ms; null for as long as it likes.
        self.timeout_ms = None if timeout is None else _timeout(timeout, named)
        self.where = f"step {self.name!r}"
        self.codec = CallCodec(function)
        self.is_async = inspect.iscoroutinefunction(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        running = context.outside_steps()
        if running is None:
            context.refuse_stray_thread(self.where)
            return self.function(*args, **kwargs)
        return running.call_step(self, args, kwargs)  # type: ignore[no-any-return]

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., Any]:
        call: Callable[..., Any] = self
        return call if instance is None else functools.partial(call, instance)

    def __reduce__(self) -> str:
        """Pickled as functions are: by name."""
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<step {self.name!r} at {self.place}>"


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How a run is started; its deadline is at an instant, in ms, or so many ms after the start."""

    key: str | None = None
    workspace: str = ""
    delay_ms: int | None = None
    deadline_at: int | None = None
    deadline_ms: int | None = None


class Workflow(Generic[P, R]):
    """A workflow function: one version of what is known under its name."""

    __name__: str
    __qualname__: str
    __wrapped__: Callable[..., R]

    def __init__(
        self,
        workflows: Workflows,
        function: Callable[..., R],
        *,
        name: str | None,
        version: int,
        min_version: int | None,
        queue: str | None,
        strict: bool,
        timeout: timedelta | float | None,
    ) -> None:
        named = _named(function)
        functools.update_wrapper(self, function)
        self.function = function
        self.place = place_of(function)
        self.name = check_workflow_name(name if name is not None else getattr(function, "__name__", None), named)
        self.version = version
        self.min_version = version if min_version is None else min_version
        _check_versions(self.version, self.min_version, named)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise DefinitionError(
                f"the workflow {self.name!r} at {self.place} is async: write a plain def; its steps may be async"
            )
        if inspect.isgeneratorfunction(function):
            raise DefinitionError(
                f"the workflow {self.name!r} at {self.place} is a generator: write a function that returns"
            )
        self.queue = None if queue is None else check_label(queue, "queue")
        self.strict = strict
        self.timeout_ms = None if timeout is None else _positive_ms(timeout, f"the timeout of the workflow {named}")
        self.description = _first_line(function)
        self.takes_context = context.takes_context(function)
        self.where = f"workflow {self.name!r}"
        self.codec = CallCodec(function, skip_first=self.takes_context)
        self._workflows = workflows

    @property
    def ranges(self) -> tuple[str, int, int]:
        """The runs it can execute: name, lowest and highest version."""
        return self.name, self.min_version, self.version

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """The plain function, without a run."""
        return self.function(*args, **kwargs)

    def __reduce__(self) -> str:
        """Pickled as functions are: by name."""
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} v{self.version} at {self.place}>"

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start a run in `db.session`'s transaction: it exists once, and only if, that commits."""
        return Start(self, StartOptions(), self._workflows).start(*args, **kwargs)

    def spawn(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start a run in a transaction of its own, committed at once. Raises `SessionBusy` where it would hang."""
        return Start(self, StartOptions(), self._workflows).spawn(*args, **kwargs)

    def start_many(self, inputs: Iterable[Mapping[str, Any]]) -> list[Handle[R]]:
        """Start a run for each mapping of arguments, in one statement, in `db.session`'s transaction."""
        return Start(self, StartOptions(), self._workflows).start_many(inputs)

    def using(
        self,
        *,
        key: str | None = None,
        workspace: str | int | None = None,
        delay: timedelta | float | None = None,
        deadline: timedelta | float | datetime | None = None,
    ) -> Start[P, R]:
        """Options for the next start.

        While an unfinished run of this workflow and workspace has the `key`, starting again answers that run.
        `delay`, a timedelta or seconds, lets the run sleep first. A run that has not finished at its `deadline`, an
        aware datetime, or a timedelta or seconds from the start, fails with `DeadlineExceeded`; where the workflow has
        a `timeout` too, the earlier counts.
        """
        at = instant_ms(deadline, what="the deadline") if isinstance(deadline, datetime) else None
        options = StartOptions(
            key=None if key is None else check_label(key, "key"),
            workspace="" if workspace is None else check_label(as_text(workspace), "workspace"),
            delay_ms=None if delay is None else to_ms(delay, what="the delay"),
            deadline_at=at,
            deadline_ms=None if at is not None or deadline is None else _positive_ms(deadline, "the deadline"),
        )
        return Start(self, options, self._workflows)


@dataclass(frozen=True, slots=True)
class Start(Generic[P, R]):
    """A workflow with the options of its next start."""

    workflow: Workflow[P, R]
    options: StartOptions
    _workflows: Workflows

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """As `Workflow.start`."""
        return self._workflows._start_call(self.workflow, self.options, args, kwargs)

    def spawn(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """As `Workflow.spawn`."""
        return self._workflows._spawn_call(self.workflow, self.options, args, kwargs)

    def start_many(self, inputs: Iterable[Mapping[str, Any]]) -> list[Handle[R]]:
        """As `Workflow.start_many`; one key for several runs would start only one, so it is refused."""
        if self.options.key is not None:
            raise DefinitionError("start_many() takes no key: with one key there can be only one run")
        return self._workflows._start_many(self.workflow, self.options, inputs)

    def using(self, **changes: Any) -> Start[P, R]:
        """These options with some changed."""
        given = self.workflow.using(**changes).options
        fields = [field for name in changes for field in _FIELDS[name]]
        return replace(self, options=replace(self.options, **{field: getattr(given, field) for field in fields}))


_FIELDS = {
    "key": ("key",),
    "workspace": ("workspace",),
    "delay": ("delay_ms",),
    "deadline": ("deadline_at", "deadline_ms"),
}


def as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _positive_ms(span: Any, what: str) -> int:
    milliseconds = to_ms(span, what=what)
    if milliseconds == 0:
        raise InvalidDuration(f"{what} must not be nothing: write at least a millisecond")
    return milliseconds


def _first_line(function: Callable[..., Any]) -> str:
    doc = inspect.getdoc(function) or ""
    return doc.strip().splitlines()[0] if doc.strip() else ""


def _check_versions(version: object, min_version: object, named: str) -> None:
    for what, value in (("version", version), ("min_version", min_version)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31 - 1:
            raise DefinitionError(f"the workflow {named} has {what}={value!r}: write a whole number from 1")
    assert isinstance(version, int)
    assert isinstance(min_version, int)
    if min_version > version:
        raise DefinitionError(
            f"the workflow {named} has min_version={min_version} above version={version}: "
            "min_version is the oldest run this code can still resume"
        )


def _timeout(value: timedelta | float, named: str) -> int:
    try:
        milliseconds = to_ms(value, what="it")
    except InvalidDuration as error:
        raise DefinitionError(
            f"the step {named} has timeout={value!r}, but {error}: write a timedelta, or seconds"
        ) from None
    if not milliseconds:
        raise DefinitionError(f"the step {named} has timeout={value!r}: write more than nothing, or leave it out")
    return milliseconds


def _exceptions(raises: object, named: str) -> tuple[type[BaseException], ...]:
    classes = raises if isinstance(raises, tuple) else (raises,)
    for item in classes:
        if not (isinstance(item, type) and issubclass(item, Exception)):
            raise DefinitionError(f"the step {named} has raises={item!r}: write exception classes")
    return classes
