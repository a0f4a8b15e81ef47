"""Declaring events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypedDict

import pytest

from flask_workflows import UnregisteredEvent
from flask_workflows import Workflows
from flask_workflows.errors import AnnotationRefused
from flask_workflows.errors import DuplicateDefinition
from flask_workflows.errors import InvalidName


@pytest.mark.parametrize("name", ["", " ", "a\0b", "x" * 256, "\ud800"])
def test_b32_names_that_cannot_be_stored_are_refused_where_they_are_declared(name: str) -> None:
    with pytest.raises(InvalidName):
        Workflows().event(name)


def test_two_classes_under_one_name_are_refused() -> None:
    workflows = Workflows()

    @dataclass
    class One:
        a: int

    @dataclass
    class Other:
        b: int

    workflows.event("it")(One)
    with pytest.raises(DuplicateDefinition, match="two classes are declared for the event 'it'"):
        workflows.event("it")(Other)


def test_the_same_class_seen_twice_is_one_declaration() -> None:
    """As after a reload: what it refers to was made anew too."""

    def load() -> type:
        class Level(Enum):
            BASIC = 1

        @dataclass
        class Upgraded:
            level: Level

        Upgraded.__annotations__["level"] = Level
        return Upgraded

    workflows = Workflows()

    workflows.event("upgraded")(load())
    workflows.event("upgraded")(load())
    workflows.event("upgraded")

    assert workflows.events.names() == ["upgraded"]


def test_a_class_may_be_declared_where_its_name_is_known_already() -> None:
    workflows = Workflows()
    workflows.event("paid")

    @workflows.event("paid")
    class Paid(TypedDict):
        order: int

    assert workflows.events.find("paid") is workflows.events.find(Paid)


def test_a_class_whose_values_cannot_be_stored_is_refused_where_it_is_declared() -> None:
    class Opaque:
        pass

    with pytest.raises(AnnotationRefused, match="Opaque"):
        Workflows().event("opaque")(Opaque)


def test_what_is_not_registered_is_named_with_what_is() -> None:
    workflows = Workflows()
    workflows.event("paid")

    with pytest.raises(UnregisteredEvent, match=r"no event 'payed' is registered here \(registered: paid\)"):
        workflows.events.find("payed")
    with pytest.raises(UnregisteredEvent, match="no event of class int is registered"):
        workflows.events.find(int)
