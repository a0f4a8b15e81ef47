"""The workflows and steps declared in this process."""

from __future__ import annotations

from typing import Any

from .definition import same_function
from .definition import Step
from .definition import Workflow
from .errors import DuplicateDefinition
from .errors import NotRegistered


class Registry:
    """Every (workflow, version) and every step name, each from one function."""

    def __init__(self) -> None:
        self._workflows: dict[str, dict[int, Workflow[Any, Any]]] = {}
        self._steps: dict[str, Step[Any, Any]] = {}
        #: The package's own: every worker runs them, no list of the app's workflows holds them.
        self._own: set[str] = set()

    def add_own(self, workflow: Workflow[Any, Any]) -> None:
        """Register a workflow of the package's own."""
        self._own.add(workflow.name)
        self._workflows[workflow.name] = {workflow.version: workflow}

    def add_workflow(self, workflow: Workflow[Any, Any]) -> None:
        versions = self._workflows.setdefault(workflow.name, {})
        known = versions.get(workflow.version)
        if known is not None and not same_function(known.function, workflow.function):
            raise DuplicateDefinition(
                f"two workflows are named {workflow.name!r} with version {workflow.version}: "
                f"{known.place} and {workflow.place}; rename one, or raise its version"
            )
        versions[workflow.version] = workflow

    def add_step(self, step: Step[Any, Any]) -> None:
        known = self._steps.get(step.name)
        if known is not None and not same_function(known.function, step.function):
            raise DuplicateDefinition(
                f"two steps are named {step.name!r}: {known.place} and {step.place}; rename one with @step(name=…)"
            )
        self._steps[step.name] = step

    def step(self, name: str) -> Step[Any, Any] | None:
        """The step declared under a name."""
        return self._steps.get(name)

    def workflows(self) -> list[Workflow[Any, Any]]:
        """Every registered version of the app's workflows, by name and version."""
        return [workflow for workflow in self._every() if workflow.name not in self._own]

    def _every(self) -> list[Workflow[Any, Any]]:
        return [versions[version] for _, versions in sorted(self._workflows.items()) for version in sorted(versions)]

    def versions(self, name: str) -> list[Workflow[Any, Any]]:
        """The registered versions of one workflow, the newest first; none where the name is not registered."""
        versions = self._workflows.get(name, {})
        return [versions[version] for version in sorted(versions, reverse=True)]

    def names(self) -> list[str]:
        """The names of the app's workflows."""
        return sorted(set(self._workflows) - self._own)

    def is_own(self, name: str) -> bool:
        """Whether it is a workflow of the package's own, which nobody starts by hand."""
        return name in self._own

    def steps(self) -> list[Step[Any, Any]]:
        """Every registered step, by name."""
        return [step for _, step in sorted(self._steps.items())]

    def latest(self, name: str) -> Workflow[Any, Any]:
        """The version new runs start on."""
        versions = self._workflows.get(name)
        if not versions:
            known = ", ".join(self.names()) or "none"
            raise NotRegistered(
                f"no workflow named {name!r} is registered here (registered: {known}); import the module that "
                "declares it, or list that module in WORKFLOWS_IMPORTS"
            )
        return versions[max(versions)]

    def resume(self, name: str, version: int) -> Workflow[Any, Any] | None:
        """The code for a run of this version: its own, else the nearest newer one that still takes it."""
        versions = self._workflows.get(name, {})
        if version in versions:
            return versions[version]
        newer = [v for v, workflow in versions.items() if workflow.min_version <= version < v]
        return versions[min(newer)] if newer else None

    def oldest(self) -> dict[str, int]:
        """For each name the lowest version any registered code resumes."""
        return {
            name: min(workflow.min_version for workflow in versions.values())
            for name, versions in self._workflows.items()
        }

    def ranges(self) -> list[tuple[str, int, int]]:
        """What a worker with this registry can execute."""
        return [workflow.ranges for workflow in self._every()]

    def known(self) -> dict[str, list[tuple[int, int]]]:
        """The ranges of versions that can be executed, by workflow."""
        known: dict[str, list[tuple[int, int]]] = {}
        for name, low, high in self.ranges():
            known.setdefault(name, []).append((low, high))
        return known

    def tries(self, default: int) -> dict[str, int]:
        """How often each step is tried; `default` times where it does not say."""
        return {step.name: step.retry.attempts or default for step in self._steps.values()}
