"""The pytest fixtures of Flask-Workflows.

A module of its own beside the package: pytest imports it in every suite of an environment, and so this one imports
nothing, neither Flask nor SQLAlchemy nor the package, before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from datetime import UTC
from typing import Any
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from flask_workflows.testing import FixedClock
    from flask_workflows.testing import WorkflowsFake


@pytest.fixture
def workflows_clock(app: Any) -> Iterator[FixedClock]:
    """The time of the app's workflows, which stands still until the test moves it. Needs a fixture `app`."""
    from flask_workflows.testing import FixedClock

    workflows = app.extensions["workflows"].workflows
    before = workflows.clock
    workflows.clock = clock = FixedClock(datetime(2030, 1, 1, 12, tzinfo=UTC))

    yield clock

    workflows.clock = before


@pytest.fixture
def workflows_fake(app: Any) -> Iterator[WorkflowsFake]:
    """Records what the app starts, and lets nothing be executed. Needs a fixture `app`."""
    from flask_workflows.testing import WorkflowsFake

    with WorkflowsFake(app.extensions["workflows"].workflows) as fake:
        yield fake
