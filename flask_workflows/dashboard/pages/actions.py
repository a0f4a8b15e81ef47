"""The pages that ask before something is done to a run: whether it can be, and what will happen."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass

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
from ...runs import Run
from ...runs import RunStatus
from ...runs import Step
from ..access import Permission


@dataclass(frozen=True, slots=True)
class Scene:
    """A run and what is known beside it, as an action finds it."""

    run: Run
    open_steps: tuple[Step, ...]
    step_count: int
    around: Surroundings

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
    """What a page asks: the question, what will happen, and the words on its buttons."""

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
    #: Of the button that leads to its page.
    label: str
    #: Why it cannot be done now; empty where it can.
    cannot: Callable[[Scene], Text]
    ask: Callable[[Scene], Ask]


@dataclass(frozen=True, slots=True)
class Offers:
    """What a run's page has buttons for, and why it has none for the rest."""

    actions: tuple[RunAction, ...] = ()
    refused: tuple[tuple[str, Text], ...] = ()


def offers(scene: Scene, may: Callable[[Permission, Run], bool]) -> Offers:
    """What the visitor can do to the run now."""
    actions: list[RunAction] = []
    refused: list[tuple[str, Text]] = []
    for action in ACTIONS:
        why_not = action.cannot(scene)
        if not why_not and not may(action.permission, scene.run):
            why_not = ("You are not allowed to ", action.permission.value, " this run.")
        if why_not:
            refused.append((action.label, why_not))
        else:
            actions.append(action)
    return Offers(tuple(actions), tuple(refused))


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
    #: What happened since the form was drawn that was sent.
    meanwhile: Text = ()


def action_page(action: RunAction, scene: Scene, *, meanwhile: Text = ()) -> ActionPage:
    run = scene.run
    why_not = action.cannot(scene)
    return ActionPage(
        id=run.id,
        workflow=run.workflow,
        state=scene.state,
        status=run.status,
        epoch=run.epoch,
        ask=None if why_not else action.ask(scene),
        cannot=why_not,
        meanwhile=meanwhile,
    )


def meanwhile(scene: Scene, drawn: str) -> Text:
    """What became of the run since a form was drawn while it was `drawn`."""
    run = scene.run
    went: Text = ("This run went to ", Name(scene.state))
    if run.status == drawn and not run.cancelling:
        went = ("This run changed since the page was loaded, and is ", Name(scene.state), " again")
    at: Text = () if run.status is RunStatus.RUNNING else (" at ", Instant(run.finished_at or run.updated_at))
    if run.cancelling and run.cancel_requested_at is not None:
        went, at = ("Cancelling was asked for",), (" at ", Instant(run.cancel_requested_at))
    return (*went, *at, ". Nothing was done.")


# Cancel ------------------------------------------------------------------------------------


def cannot_cancel(scene: Scene) -> Text:
    run = scene.run
    if run.finished:
        return _finished(run)
    if run.cancelling:
        asked = Instant(run.cancel_requested_at or run.updated_at, "ago")
        return ("Cancelling was asked for ", asked, "; the run stops at its next step.")
    return ()


def ask_cancel(scene: Scene) -> Ask:
    return Ask(
        title="Cancel this run?",
        effects=tuple(_cancel_effects(scene)),
        do="Cancel the run",
        keep="Keep it",
        danger=True,
    )


def _cancel_effects(scene: Scene) -> Iterator[Text]:
    run, step = scene.run, scene.step
    match scene.state:
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
    yield from _kept(scene)
    yield ("A cancelled run can be retried later; it goes on from where it stopped.",)


def _kept(scene: Scene) -> Iterator[Text]:
    """What becomes of what was done."""
    if scene.step_count:
        calls = phrases.several(scene.step_count, "recorded call")
        yield (f"Its {calls} stay. What the steps did is not undone.",)


# Shared ------------------------------------------------------------------------------------


def _finished(run: Run) -> Text:
    at: Text = () if run.finished_at is None else (" since ", Instant(run.finished_at))
    return ("The run is ", Name(run.status), *at, ".")


ACTIONS = (RunAction("cancel", Permission.CANCEL, "Cancel", cannot_cancel, ask_cancel),)
