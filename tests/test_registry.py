"""What may be declared, and what is found again under a name (R1-R5)."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pickle
import runpy
import sys
from collections.abc import AsyncIterator
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from typing import assert_type
from typing import ParamSpec
from typing import TypeVar

import pytest
from flask import Flask

from flask_workflows import current_run
from flask_workflows import Handle
from flask_workflows import NotRegistered
from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import DefinitionError
from flask_workflows.errors import DuplicateDefinition
from tests import apps

P = ParamSpec("P")
R = TypeVar("R")

declared = Workflows()


@declared.step
def add(one: int, other: int = 2) -> int:
    """Adds two numbers."""
    return one + other


@declared.workflow
def summing(ctx: WorkflowContext, one: int, *, other: int = 2) -> int:
    """Sums up.

    At length.
    """
    return add(one, other)


@pytest.fixture
def workflows() -> Workflows:
    """Without an app: declaring needs none."""
    return Workflows()


def line_of(function: Callable[..., object]) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno}"


# Names and versions ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "7", "send-invoice", "billing.invoice_2", "a" * 100])
def test_a_workflow_name_of_small_letters_digits_and_marks_is_taken(workflows: Workflows, name: str) -> None:
    @workflows.workflow(name=name)
    def invoice() -> None: ...

    assert workflows.registry.latest(name) is invoice


@pytest.mark.parametrize(
    "name",
    ["", " ", "Invoice", "-a", ".a", "_a", "a b", "a/b", "a#2", "$a", "é", "a\n", "a\0", "..", "a" * 101, 7, b"a"],
)
def test_any_other_workflow_name_is_refused_with_function_and_file(workflows: Workflows, name: Any) -> None:
    def invoice() -> None: ...

    with pytest.raises(DefinitionError) as refusal:
        workflows.workflow(name=name)(invoice)

    assert repr(name) in str(refusal.value)
    assert "invoice" in str(refusal.value)
    assert line_of(invoice) in str(refusal.value)


def test_a_function_name_that_is_no_workflow_name_is_refused(workflows: Workflows) -> None:
    with pytest.raises(DefinitionError, match=r"'SendInvoice' is no name for the workflow .*@workflow\(name="):

        @workflows.workflow
        def SendInvoice() -> None: ...


@pytest.mark.parametrize("name", ["a", "Send mail", "é", "a$b", "a" * 100])
def test_a_step_name_may_be_any_short_text(workflows: Workflows, name: str) -> None:
    step = workflows.step(name=name)(lambda: None)

    assert step.name == name


@pytest.mark.parametrize("name", ["", "  ", "a#2", "a/b", "$sleep", "a\nb", "a\0b", "\ud800", "a" * 101, 7])
def test_b32_a_step_name_that_would_spoil_its_key_is_refused(workflows: Workflows, name: Any) -> None:
    def send() -> None: ...

    with pytest.raises(DefinitionError) as refusal:
        workflows.step(name=name)(send)

    assert repr(name) in str(refusal.value)
    assert line_of(send) in str(refusal.value)


@pytest.mark.parametrize("version", [0, -1, True, 1.0, "1", None, 2**31])
def test_a_version_that_is_no_whole_number_from_one_is_refused(workflows: Workflows, version: Any) -> None:
    def invoice() -> None: ...

    with pytest.raises(DefinitionError) as refusal:
        workflows.workflow(version=version)(invoice)

    assert f"version={version!r}" in str(refusal.value)
    assert "invoice" in str(refusal.value)
    assert line_of(invoice) in str(refusal.value)


@pytest.mark.parametrize("min_version", [0, True, 4])
def test_a_min_version_outside_of_one_to_version_is_refused(workflows: Workflows, min_version: int) -> None:
    with pytest.raises(DefinitionError, match=f"min_version={min_version}"):

        @workflows.workflow(version=3, min_version=min_version)
        def invoice() -> None: ...


def test_an_async_or_generating_workflow_is_refused(workflows: Workflows) -> None:
    async def waits() -> None: ...

    async def yields_later() -> AsyncIterator[int]:
        yield 1

    def yields() -> Iterator[int]:
        yield 1

    for function, what in [(waits, "async"), (yields_later, "async"), (yields, "a generator")]:
        with pytest.raises(DefinitionError) as refusal:
            workflows.workflow(name="refused")(function)

        assert f"is {what}" in str(refusal.value)
        assert line_of(function) in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"retry": 3}, "retry=3"),
        ({"raises": ["ValueError"]}, "raises="),
        ({"raises": (ValueError, int)}, "raises="),
        ({"raises": KeyboardInterrupt}, "raises="),
    ],
)
def test_a_step_option_of_the_wrong_kind_is_refused(workflows: Workflows, options: dict[str, Any], named: str) -> None:
    def send() -> None: ...

    with pytest.raises(DefinitionError, match=named) as refusal:
        workflows.step(**options)(send)

    assert line_of(send) in str(refusal.value)


# One name, one function --------------------------------------------------------------------


def test_two_workflows_under_one_name_and_version_are_refused_naming_both_places(workflows: Workflows) -> None:
    def one() -> None: ...

    def other() -> None: ...

    workflows.workflow(name="invoice")(one)

    with pytest.raises(DuplicateDefinition) as refusal:
        workflows.workflow(name="invoice")(other)

    assert line_of(one) in str(refusal.value)
    assert line_of(other) in str(refusal.value)
    assert workflows.registry.latest("invoice").function is one


def test_two_steps_under_one_name_are_refused_naming_both_places(workflows: Workflows) -> None:
    def one() -> None: ...

    def other() -> None: ...

    workflows.step(name="send")(one)

    with pytest.raises(DuplicateDefinition) as refusal:
        workflows.step(name="send")(other)

    assert line_of(one) in str(refusal.value)
    assert line_of(other) in str(refusal.value)


def test_two_functions_behind_a_decorator_that_forgets_to_wrap_are_refused(workflows: Workflows) -> None:
    def forgetful(function: Callable[[], int]) -> Callable[[], int]:
        def wrapper() -> int:
            return function()

        return wrapper

    def one() -> int:
        return 1

    def two() -> int:
        return 2

    workflows.workflow(forgetful(one))

    with pytest.raises(DuplicateDefinition):
        workflows.workflow(forgetful(two))


def test_two_functions_behind_a_decorator_that_wraps_are_two_steps(workflows: Workflows) -> None:
    def careful(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(*args, **kwargs)

        return wrapper

    @workflows.step
    @careful
    def one() -> int:
        return 1

    @workflows.step
    @careful
    def two() -> int:
        return 2

    assert (one.name, two.name) == ("one", "two")
    assert (one(), two()) == (1, 2)


def test_one_partial_may_be_declared_twice_and_two_may_not_share_a_name(workflows: Workflows) -> None:
    add_one = functools.partial(add.function, 1)
    workflows.step(name="add-one")(add_one)

    again = workflows.step(name="add-one")(add_one)

    assert again(5) == 6
    with pytest.raises(DuplicateDefinition):
        workflows.step(name="add-one")(functools.partial(add.function, 2))


def test_a_function_declared_by_each_call_of_a_factory_is_one_registration(workflows: Workflows) -> None:
    def create_app() -> None:
        @workflows.step
        def send() -> None: ...

        @workflows.workflow
        def invoice() -> None:
            send()

    create_app()
    create_app()

    assert [workflow.name for workflow in workflows.registry.workflows()] == ["invoice"]


def test_versions_of_a_name_live_side_by_side_and_the_newest_is_started(workflows: Workflows) -> None:
    def older() -> None: ...

    def newer() -> None: ...

    workflows.workflow(name="invoice", version=2)(newer)
    workflows.workflow(name="invoice", version=1)(older)

    assert workflows.registry.latest("invoice").function is newer
    assert [workflow.version for workflow in workflows.registry.workflows()] == [1, 2]


def test_a_run_is_resumed_by_its_own_version_or_the_nearest_that_takes_it(workflows: Workflows) -> None:
    for version, min_version in [(2, 2), (4, 3), (6, 3)]:

        def invoice(number: int = version) -> int:
            return number

        workflows.workflow(name="invoice", version=version, min_version=min_version)(invoice)

    resumed = [workflows.registry.resume("invoice", version) for version in range(1, 8)]

    assert [workflow and workflow.version for workflow in resumed] == [None, 2, 4, 4, 6, 6, None]


# The same function, seen again -------------------------------------------------------------

MODULE = """
from shared_declarations import workflows

@workflows.step
def send() -> str:
    return "sent"

@workflows.workflow
def invoice() -> str:
    return send()
"""


@pytest.fixture
def module_path(workflows: Workflows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that declares, with the package of its app beside it."""
    shared = ModuleType("shared_declarations")
    shared.__dict__["workflows"] = workflows
    monkeypatch.setitem(sys.modules, "shared_declarations", shared)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "billing_declarations.py"
    path.write_text(MODULE)

    return path


def import_as(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    return module


def test_b100_a_reloaded_module_declares_the_same(
    workflows: Workflows, module_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(module_path.stem)
    monkeypatch.setitem(sys.modules, module_path.stem, module)

    reloaded = importlib.reload(module)

    assert workflows.registry.latest("invoice") is reloaded.invoice
    assert len(workflows.registry.workflows()) == 1


def test_b100_a_module_imported_under_two_names_declares_the_same(workflows: Workflows, module_path: Path) -> None:
    import_as("billing", module_path)
    import_as("shop.billing", module_path)

    assert [workflow.name for workflow in workflows.registry.workflows()] == ["invoice"]


def test_b100_a_module_run_as_a_script_and_imported_declares_the_same(workflows: Workflows, module_path: Path) -> None:
    runpy.run_path(str(module_path), run_name="__main__")
    import_as("billing", module_path)

    assert [workflow.name for workflow in workflows.registry.workflows()] == ["invoice"]


def test_b100_another_function_of_the_same_name_in_another_module_is_refused(
    workflows: Workflows, module_path: Path
) -> None:
    copied = module_path.with_name("copied_declarations.py")
    copied.write_text(MODULE)
    import_as("billing", module_path)

    with pytest.raises(DuplicateDefinition) as refusal:
        import_as("copied", copied)

    assert f"{module_path}:4" in str(refusal.value)
    assert f"{copied}:4" in str(refusal.value)


# What a decorated function still is --------------------------------------------------------


def test_b135_a_step_keeps_the_metadata_of_its_function() -> None:
    assert add.__name__ == "add"
    assert add.__doc__ == "Adds two numbers."
    assert add.__module__ == __name__
    assert add.__wrapped__ is add.function
    assert str(inspect.signature(add)) == "(one: 'int', other: 'int' = 2) -> 'int'"


def test_b135_a_workflow_keeps_the_metadata_of_its_function() -> None:
    assert summing.__name__ == "summing"
    assert summing.__doc__ == "Sums up.\n\n    At length.\n    "
    assert summing.__module__ == __name__
    assert summing.__wrapped__ is summing.function
    assert list(inspect.signature(summing).parameters) == ["ctx", "one", "other"]


@pytest.mark.parametrize("item", [add, summing])
def test_b135_what_was_declared_pickles_by_its_name_as_functions_do(item: Any) -> None:
    assert pickle.loads(pickle.dumps(item)) is item


def test_b135_a_step_outside_a_run_is_a_plain_call() -> None:
    assert add(1) == 3
    assert add(1, other=5) == 6


def test_b135_a_workflow_called_outside_a_run_is_its_plain_function(workflows: Workflows) -> None:
    @workflows.workflow
    def doubled(number: int) -> int:
        return add(number, number)

    assert doubled(4) == 8


def test_b135_a_step_declared_in_a_class_is_a_method_of_its_instances(workflows: Workflows) -> None:
    class Mailer:
        sender = "shop"

        @workflows.step
        def send(self, to: str) -> str:
            return f"{self.sender} to {to}"

        @staticmethod
        @workflows.step
        def bounce(to: str) -> str:
            return f"bounced {to}"

    assert Mailer().send("ann") == "shop to ann"
    assert Mailer.bounce("ann") == "bounced ann"
    assert vars(Mailer)["send"].name == "send"


def test_the_first_line_of_the_docstring_is_the_description(workflows: Workflows) -> None:
    @workflows.workflow
    def silent() -> None: ...

    assert summing.description == "Sums up."
    assert silent.description == ""


def test_types_go_through_the_decorators(make_app: apps.MakeApp, sqlite_url: str) -> None:
    app = make_app(sqlite_url, workflows=declared)

    with app.app_context():
        handle = summing.spawn(1, other=2)

        assert_type(add(1, 2), int)
        assert_type(handle, Handle[int])
        assert_type(handle.output(), int | None)
        assert_type(summing.using(key="k").spawn(one=1), Handle[int])
        assert_type(summing.start_many([{"one": 1}]), list[Handle[int]])
        apps.database_of(app).session.commit()

        # Each of these is refused by the type checker too: an ignore that is not needed is an error to it.
        with pytest.raises(TypeError):
            add("1", 2)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            summing.start(1, 2)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            summing.start()  # type: ignore[call-arg]


# What is registered, and runs --------------------------------------------------------------


def test_starting_what_is_not_registered_says_which_module_to_import(
    make_app: apps.MakeApp, sqlite_url: str, workflows: Workflows
) -> None:
    @workflows.workflow
    def invoice() -> None: ...

    with make_app(sqlite_url, workflows=workflows).app_context(), pytest.raises(NotRegistered) as refusal:
        workflows.start("invoices")

    assert "'invoices'" in str(refusal.value)
    assert "registered: invoice" in str(refusal.value)
    assert "WORKFLOWS_IMPORTS" in str(refusal.value)
    assert isinstance(refusal.value, LookupError)


def test_a_run_goes_on_with_newer_code_that_still_takes_its_version(app: Flask) -> None:
    workflows = apps.workflows_of(app)

    def invoice() -> int:
        return current_run.version

    with app.app_context():
        handle = workflows.workflow(name="invoice", version=1)(invoice).spawn()
        workflows.registry = type(workflows.registry)()
        workflows.workflow(name="invoice", version=3, min_version=1)(invoice)

        executions = workflows.tick()

        assert executions == 1
        assert handle.output() == 1


def test_b53_a_run_of_a_version_nobody_here_takes_is_left_alone(app: Flask) -> None:
    workflows = apps.workflows_of(app)

    def invoice() -> None: ...

    with app.app_context():
        old = workflows.workflow(name="invoice", version=1)(invoice).spawn()
        new = workflows.workflow(name="invoice", version=4)(invoice).spawn()
        gone = workflows.workflow(name="reminder")(invoice).spawn()
        workflows.registry = type(workflows.registry)()
        workflows.workflow(name="invoice", version=3, min_version=2)(invoice)

        executions = workflows.tick()

        assert executions == 0
        assert {handle.status() for handle in (old, new, gone)} == {RunStatus.PENDING}
        assert {handle.run().epoch for handle in (old, new, gone)} == {0}


def test_an_argument_added_with_a_default_is_safe_for_runs_under_way(app: Flask) -> None:
    workflows = apps.workflows_of(app)

    def before(number: int, currency: str = "EUR") -> str:
        return f"{number} {currency}"

    def after(number: int, currency: str = "USD", rounded: bool = True) -> str:
        return f"{number} {currency} {rounded}"

    with app.app_context():
        handle = workflows.workflow(name="invoice")(before).spawn(7)
        stored = handle.run().input
        workflows.registry = type(workflows.registry)()
        workflows.workflow(name="invoice")(after)
        workflows.tick()

        assert stored == {"number": 7}
        assert handle.run().output == "7 USD True"
