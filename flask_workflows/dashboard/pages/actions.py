"""The pages that ask before something is done to a run: whether it can be, and what will happen."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from ... import phrases
from ...explain import capital
from ...explain import Instant
from ...explain import main_step
from ...explain import Name
from ...explain import numbered
from ...explain import on_worker
from ...explain import state
from ...explain import Surroundings
from ...explain import Text
from ...explain import worker_name
from ...runs import AuditEntry
from ...runs import Call
from ...runs import Count
from ...runs import Run
from ...runs import RunStatus
from ...runs import Step
from ...runs import Worker
from ..access import Permission
from .repeating import Choices
from .repeating import choices
from .repeating import forked
from .repeating import listed
from .repeating import retried
from .repeating import retried_from

NO_CHILDREN = Count(0)


@dataclass(frozen=True, slots=True)
class Scene:
    """A run and what is known beside it, as an action finds it."""

    run: Run
    open_steps: tuple[Step, ...]
    step_count: int
    around: Surroundings
    #: The worker that holds the run, where that is not among the live ones.
    holder: Worker | None = None
    #: A worker that was not seen for this long is lost.
    lost_after: timedelta = timedelta(seconds=30)
    #: Its recorded calls, up to a few more than are told of; of a run whose action does not tell of them, none.
    calls: tuple[Call, ...] = ()
    #: Names of messages that it waits for.
    awaited: tuple[str, ...] = ()
    #: The key of the call to go on from; empty where none is given.
    from_key: str = ""
    #: Whether the run has that call.
    from_known: bool = True
    #: Its children that have not finished.
    children: Count = NO_CHILDREN
    #: Whether its workflow is one of the package's own.
    own: bool = False

    @property
    def from_words(self) -> str:
        """The call to go on from, as people say it."""
        found = next((call for call in self.calls if call.key == self.from_key), None)
        return "that call" if found is None else f"step {phrases.number(found.number)}"

    @property
    def state(self) -> str:
        return state(self.run, self.open_steps)

    @property
    def step(self) -> Step | None:
        """The step that says most about what the run does."""
        return main_step(self.run, self.open_steps)

    @property
    def late(self) -> bool:
        """Whether its worker's lease ran out."""
        return self.run.worker is not None and self.run.due_at is not None and self.run.due_at <= self.around.now


@dataclass(frozen=True, slots=True)
class Ask:
    """What a page asks: the question, what will happen, and the words on its buttons.

    Nothing is done, and `do` is empty, while something is still to be chosen.
    """

    title: str
    effects: tuple[Text, ...]
    do: str
    keep: str
    danger: bool = False


@dataclass(frozen=True, slots=True)
class RunAction:
    """Something that can be done to one run."""

    #: The last part of its address.
    name: str
    permission: Permission
    label: Callable[[Scene], str]
    #: Why it cannot be done now; empty where it can.
    cannot: Callable[[Scene], Text]
    ask: Callable[[Scene], Ask]
    #: Whether it is done only to the run as its page showed it.
    as_shown: bool = True
    #: Whether it may go on from a call that is chosen.
    chooses: bool = False
    #: Whether it makes sense to ask for it at all; it is spoken of only then.
    fits: Callable[[Run], bool] = lambda run: True

    @property
    def tells_calls(self) -> bool:
        """Whether its page tells of recorded calls."""
        return self.chooses or self.permission is Permission.CANCEL


@dataclass(frozen=True, slots=True)
class Offer:
    """A button that leads to an action's page."""

    name: str
    label: str


@dataclass(frozen=True, slots=True)
class Offers:
    """What a run's page has buttons for, and why it has none for the rest."""

    actions: tuple[Offer, ...] = ()
    refused: tuple[tuple[str, Text], ...] = ()


def offers(scene: Scene, may: Callable[[Permission, Run], bool], *, read_only: bool = False) -> Offers:
    """What the visitor can do to the run now."""
    actions: list[Offer] = []
    refused: list[tuple[str, Text]] = []
    for action in ACTIONS:
        if not action.fits(scene.run):
            continue
        label = action.label(scene)
        why_not = action.cannot(scene)
        if not why_not and not may(action.permission, scene.run):
            why_not = ("You are not allowed to ", action.permission.value, " this run.")
            if read_only:
                why_not = ("Nothing can be changed here: these pages are read-only.",)
        if why_not:
            refused.append((label, why_not))
        else:
            actions.append(Offer(action.name, label))
    return Offers(tuple(actions), tuple(refused))


def offers_from_here(scene: Scene, may: Callable[[Permission, Run], bool]) -> tuple[Offer, ...]:
    """How the visitor can let the run go on from one of its calls."""
    can = {offer.name: offer for offer in offers(scene, may).actions}
    return tuple(
        Offer(action.name, f"{can[action.name].label} from here")
        for action in ACTIONS
        if action.chooses and action.name in can
    )


@dataclass(frozen=True, slots=True)
class ActionPage:
    """A page that asks; `ask` is null where nothing can be done now, and `cannot` says why."""

    id: str
    workflow: str
    state: str
    #: What the form was drawn from.
    status: str
    epoch: int
    ask: Ask | None
    cannot: Text
    awaited: tuple[str, ...]
    #: The call to go on from, by its key, and those there are to choose from.
    from_key: str
    choices: Choices
    children: Count
    #: What happened since the form was drawn that was sent.
    meanwhile: Text = ()


def action_page(action: RunAction, scene: Scene, *, meanwhile: Text = ()) -> ActionPage:
    run = scene.run
    why_not = action.cannot(scene)
    return ActionPage(
        id=run.id,
        workflow=run.workflow,
        state=scene.state,
        status=_standing(run),
        epoch=run.epoch,
        ask=None if why_not else action.ask(scene),
        cannot=why_not,
        awaited=scene.awaited,
        from_key=scene.from_key,
        choices=choices(scene.calls, scene.step_count) if action.chooses and not why_not else Choices(),
        children=scene.children,
        meanwhile=meanwhile,
    )


def meanwhile(scene: Scene, drawn: str, last: AuditEntry | None = None) -> Text:
    """What became of the run since a form was drawn while it was `drawn`; `last` is what was done to it last."""
    run = scene.run
    who: Text = ()
    # Of a retry from a call, that stands behind the status.
    became = "" if last is None else (last.after or "").partition(",")[0]
    if last is not None and last.actor and became == (scene.state if run.cancelling else _standing(run)):
        who = (", by ", Name(last.actor))
    if run.cancelling and run.cancel_requested_at is not None:
        return ("Cancelling was asked for at ", Instant(run.cancel_requested_at), *who, ". Nothing was done.")
    went: Text = ("This run went to ", Name(scene.state))
    if _standing(run) == drawn:
        went = ("This run changed since the page was loaded, and is ", Name(scene.state), " again")
    at: Text = () if run.status is RunStatus.RUNNING else (" at ", Instant(run.finished_at or run.updated_at))
    return (*went, *at, *who, ". Nothing was done.")


def _standing(run: Run) -> str:
    return "paused" if run.paused else str(run.status)


# Cancel ------------------------------------------------------------------------------------


def _cannot_cancel(scene: Scene) -> Text:
    run = scene.run
    if run.finished:
        return _finished(run)
    if run.undoing:
        return ("It has ended, and what it did is being undone.",)
    if run.cancelling:
        asked = Instant(run.cancel_requested_at or run.updated_at, "ago")
        return ("Cancelling was asked for ", asked, "; the run stops at its next step.")
    return ()


def _ask_cancel(scene: Scene) -> Ask:
    return Ask("Cancel this run?", tuple(_cancel_effects(scene)), "Cancel the run", "Keep it", danger=True)


def _cancel_effects(scene: Scene) -> Iterator[Text]:
    run, step = scene.run, scene.step
    match str(run.status) if run.paused else scene.state:
        case RunStatus.RUNNING if not scene.late:
            doing: Text = ("It runs",) if step is None else (*capital(numbered(step)), ", runs")
            first = "What runs there" if step is None else "It"
            yield (
                *doing,
                " on ",
                *on_worker(run, scene.around),
                f" now. {first} finishes first; nothing after it starts.",
            )
        case RunStatus.RUNNING:
            yield ("Its worker does not answer. The run ends at once.",)
        case RunStatus.SLEEPING if run.due_at is not None:
            yield ("It ends at once, and does not wake at ", Instant(run.due_at), ".")
        case RunStatus.WAITING:
            yield ("It ends at once, and waits no longer.",)
        case "retrying" if step is not None:
            yield ("It ends at once. ", *capital(numbered(step)), ", is not tried again.")
        case _:
            yield ("It ends at once.",)
    if scene.children.value:
        number = phrases.count(scene.children.value, capped=scene.children.capped)
        yield (f"The unfinished runs that it started, {number} now, end with it, and so do those they started.",)
    pushed = [call for call in scene.calls if call.status == "pushed"]
    if pushed:
        yield ("What it did is undone first, by: ", *listed(pushed[::-1]), ". After that it cannot be retried.")
        return
    if scene.step_count:
        calls = phrases.several(scene.step_count, "recorded call")
        yield (f"Its {calls} stay. What the steps did is not undone.",)
    yield ("A cancelled run can be retried later; it goes on from where it stopped.",)


# Retry -------------------------------------------------------------------------------------


def _cannot_retry(scene: Scene) -> Text:
    if scene.run.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
        return ("Only a failed or cancelled run can be retried; this one is ", Name(scene.state), ".")
    if scene.run.undone:
        return ("What it did was undone when it ended, so there is nothing to go on from. Start a new run instead.",)
    return _unknown_call(scene)


def _unknown_call(scene: Scene) -> Text:
    return () if scene.from_known else ("The run has no recorded call ", Name(scene.from_key), ".")


def _ask_retry(scene: Scene) -> Ask:
    title = f"Retry this run from {scene.from_words}?" if scene.from_key else "Retry this run?"
    return Ask(title, tuple(_retry_effects(scene)), "Retry the run", "Leave it as it is")


def _retry_effects(scene: Scene) -> Iterator[Text]:
    run = scene.run
    yield from retried_from(scene.calls, scene.from_key) if scene.from_key else retried(scene.calls)
    if run.error is not None and run.error.kind == "nondeterminism":
        yield ("The code must make the recorded calls again, in their order; if it does not, the run fails as before.",)
    yield (f"It goes on as version {run.version}. {_able(scene)}",)
    if run.key is not None:
        yield ("It takes its key ", Name(run.key), " again. If a newer unfinished run has it, nothing is done.")


def _able(scene: Scene) -> str:
    able = sum(worker.can_run(scene.run) for worker in scene.around.workers)
    return (
        f"{phrases.several(able, 'live worker')} can take it." if able else "No live worker can take it now: it waits."
    )


# Fork --------------------------------------------------------------------------------------


def _cannot_fork(scene: Scene) -> Text:
    run = scene.run
    if scene.own:
        return ("It is a run of the package's own: ask for the same again where it was asked for.",)
    if run.undone:
        return ("What it did was undone when it ended, so there is nothing to go on from. Start a new run instead.",)
    if not scene.step_count:
        return ("No call is recorded that a fork could go on from. Start a new run instead.",)
    return _unknown_call(scene)


def _ask_fork(scene: Scene) -> Ask:
    if not scene.from_key:
        told: Text = ("A fork is a new run that takes over what this one recorded before a call, and goes on from it.",)
        return Ask("Fork this run?", (told, _stays(scene.run)), "", "Leave it")
    return Ask(f"Fork this run from {scene.from_words}?", tuple(_fork_effects(scene)), "Fork the run", "Leave it")


def _stays(run: Run) -> Text:
    stays = "This run stays as it is" if run.finished else "This run goes on as it is"
    return (f"{stays}: nothing of it is changed.",)


def _fork_effects(scene: Scene) -> Iterator[Text]:
    run = scene.run
    yield from forked(scene.calls, scene.from_key)
    yield _stays(run)
    key: Text = () if run.key is None else (", without its key ", Name(run.key))
    able = _able(scene)
    yield ("The new run has this one's input and queue", *key, f". It is of version {run.version}. {able}")


# Wake and move -----------------------------------------------------------------------------


def _cannot_wake(scene: Scene) -> Text:
    run = scene.run
    if run.finished:
        return _finished(run)
    if run.status is not RunStatus.SLEEPING:
        return ("Only a sleeping run has a timer; this one is ", Name(scene.state), ".")
    if run.due_at is not None and run.due_at <= scene.around.now:
        return ("Its time has come already: it waits for a worker.",)
    return ()


def _wake_label(scene: Scene) -> str:
    return "Try again now" if scene.state == "retrying" else "Wake now"


def _ask_wake(scene: Scene) -> Ask:
    retrying = scene.state == "retrying"
    return Ask(
        "Try again now?" if retrying else "Wake this run now?",
        tuple(_wake_effects(scene)),
        "Try again now" if retrying else "Wake it now",
        "Let it wait" if retrying else "Let it sleep",
    )


def _wake_effects(scene: Scene) -> Iterator[Text]:
    yield from _planned(scene)
    step = scene.step
    if scene.state == "retrying":
        tried: Text = ("The run",) if step is None else capital(numbered(step))
        yield (*tried, ", is tried again at once." if step is not None else " is tried again at once.")
        yield ("The attempt counts as it would have later.",)
    elif scene.run.started_at is None and step is None:
        yield ("It begins at once.",)
    else:
        yield ("The sleep ends at once, and the workflow goes on behind it.",)
    if scene.run.paused:
        yield ("It is paused: it goes on once it is resumed.",)


def _planned(scene: Scene) -> Iterator[Text]:
    if scene.run.due_at is not None:
        yield ("Planned for ", Instant(scene.run.due_at), ", ", Instant(scene.run.due_at, "in"), ".")


def _ask_move(scene: Scene) -> Ask:
    effects = [*_planned(scene)]
    if scene.state == "retrying":
        effects.append(("The next try is made at the time you give instead.",))
    else:
        effects.append(("It wakes at the time you give instead, and goes on from there.",))
    return Ask("Move the timer of this run?", tuple(effects), "Move the timer", "Leave it as it is")


# Pause and resume --------------------------------------------------------------------------


def _cannot_pause(scene: Scene) -> Text:
    run = scene.run
    if run.finished:
        return _finished(run)
    if run.cancelling and not run.undoing:
        return ("It is being cancelled.",)
    return ("It is paused already.",) if run.paused else ()


def _ask_pause(scene: Scene) -> Ask:
    return Ask("Pause this run?", tuple(_pause_effects(scene)), "Pause the run", "Let it go on")


def _pause_effects(scene: Scene) -> Iterator[Text]:
    run, step = scene.run, scene.step
    if run.worker is not None and not scene.late:
        doing: Text = ("What runs now",) if step is None else (*capital(numbered(step)), ",")
        yield (*doing, " finishes first; nothing after it starts.")
    elif run.status is RunStatus.WAITING:
        yield ("What it waits for still ends its wait, but it goes on only once it is resumed.",)
    elif run.status is RunStatus.SLEEPING and run.due_at is not None:
        yield ("Its time goes on: resumed after ", Instant(run.due_at), ", it goes on at once.")
    yield ("Nothing of it is executed until somebody resumes it.",)
    if run.deadline_at is not None:
        yield ("Its deadline, ", Instant(run.deadline_at), ", stays: where it has passed, the run fails when resumed.")


def _cannot_resume(scene: Scene) -> Text:
    return () if scene.run.paused else ("It is not paused.",)


def _ask_resume(scene: Scene) -> Ask:
    return Ask("Resume this run?", tuple(_resume_effects(scene)), "Resume the run", "Leave it paused")


def _resume_effects(scene: Scene) -> Iterator[Text]:
    run, now = scene.run, scene.around.now
    due_at = run.due_at or run.paused_due_at
    if run.worker is not None:
        yield ("It has not stopped yet, and goes on as if nothing had been asked.",)
    elif run.deadline_at is not None and run.deadline_at <= now:
        yield ("Its deadline passed ", Instant(run.deadline_at, "ago"), ": it fails.")
    elif due_at is None:
        yield ("It waits on, as it did before.",)
    elif due_at <= now:
        yield (f"It goes on at once. {_able(scene)}",)
    else:
        yield ("It goes on ", Instant(due_at), ", ", Instant(due_at, "in"), ", or when what it waits for comes.")


# Release -----------------------------------------------------------------------------------


def _cannot_release(scene: Scene) -> Text:
    run, around = scene.run, scene.around
    if run.finished:
        return _finished(run)
    if run.worker is None:
        return ("No worker holds it: it is ", Name(scene.state), ".")
    live = around.names.get(run.worker)
    worker = live or scene.holder
    if worker is None or worker.stopped_at is not None or worker.seen_at < around.now - scene.lost_after:
        return ()
    seconds = phrases.age(scene.lost_after)
    seen = Instant(worker.seen_at, "ago")
    return ("Its worker, ", Name(worker_name(worker)), ", was seen ", seen, f"; it is lost after {seconds} of silence.")


def _ask_release(scene: Scene) -> Ask:
    return Ask(
        "Release the lease of this run?", tuple(_release_effects(scene)), "Release the lease", "Wait for the lease"
    )


def _release_effects(scene: Scene) -> Iterator[Text]:
    run, step, holder = scene.run, scene.step, scene.holder
    named: Text = ("the process that holds it",)
    if holder is not None:
        named = (Name(worker_name(holder)),)
        if holder.stopped_at is not None:
            yield (*named, " stopped ", Instant(holder.stopped_at, "ago"), ".")
        else:
            yield (*named, " was last seen ", Instant(holder.seen_at, "ago"), ".")
    else:
        yield (
            "The process that holds it is not among the workers. It may be a ",
            Name("flask workflows tick"),
            " under way.",
        )
    if run.due_at is not None and not scene.late:
        yield ("Without this, any worker takes the run over ", Instant(run.due_at, "in"), ".")
    what: Text = ("The run",) if step is None else (*capital(numbered(step)), ",")
    if run.status is RunStatus.RUNNING and run.attempts + 1 >= run.max_attempts:
        yield ("The next worker fails the run: its attempts are used up.",)
    elif run.status is RunStatus.RUNNING:
        again = f" starts again on the next free worker, attempt {run.attempts + 2} of {run.max_attempts}."
        yield (*what, again)
    else:
        yield ("It had not begun; the next free worker begins it.",)
    twice: Text = ("what it does",) if step is None else numbered(step)
    yield ("If ", *named, " still lives, ", *twice, " may run twice. Only one of the two can store a result.")


# Send --------------------------------------------------------------------------------------


def _cannot_send(scene: Scene) -> Text:
    run = scene.run
    return ("Nobody would read it. ", *_finished(run)) if run.finished else ()


def _ask_send(scene: Scene) -> Ask:
    return Ask("Send this run a message?", tuple(_send_effects(scene)), "Send the message", "Send nothing")


def _send_effects(scene: Scene) -> Iterator[Text]:
    names: Text = ()
    for name in scene.awaited:
        names = (*names, *((", ",) if names else ()), Name(name))
    if names:
        yield ("It waits for a message named ", *names, ": one of that name wakes it.")
    yield ("The message is kept until the run takes one of its name, the oldest first.",)
    yield ("It is sent once, also if the form is sent twice.",)


# Shared ------------------------------------------------------------------------------------


def _finished(run: Run) -> Text:
    at: Text = () if run.finished_at is None else (" since ", Instant(run.finished_at))
    return ("The run is ", Name(run.status), *at, ".")


def _named(label: str) -> Callable[[Scene], str]:
    return lambda scene: label


ACTIONS = (
    RunAction("retry", Permission.RETRY, _named("Retry"), _cannot_retry, _ask_retry, chooses=True),
    RunAction("wake", Permission.WAKE, _wake_label, _cannot_wake, _ask_wake),
    RunAction("move", Permission.WAKE, _named("Move timer"), _cannot_wake, _ask_move),
    RunAction("release", Permission.RELEASE, _named("Release lease"), _cannot_release, _ask_release),
    RunAction("send", Permission.SEND, _named("Send message"), _cannot_send, _ask_send, as_shown=False),
    RunAction("fork", Permission.START, _named("Fork"), _cannot_fork, _ask_fork, chooses=True),
    RunAction("pause", Permission.PAUSE, _named("Pause"), _cannot_pause, _ask_pause, fits=lambda run: not run.paused),
    RunAction("resume", Permission.PAUSE, _named("Resume"), _cannot_resume, _ask_resume, fits=lambda run: run.paused),
    RunAction("cancel", Permission.CANCEL, _named("Cancel"), _cannot_cancel, _ask_cancel),
)
