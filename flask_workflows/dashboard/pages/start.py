"""The form that a run is started with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...definition import Workflow
from ...explain import Text
from ...runtime import Runtime
from .. import declarations
from ..declarations import Parameter


@dataclass(frozen=True, slots=True)
class StartPage:
    """`workflow` is null while none is chosen."""

    names: tuple[str, ...]
    workflow: str | None = None
    description: str = ""
    version: int = 0
    queue: str = ""
    parameters: tuple[Parameter, ...] = ()
    #: What the field holds before anybody types.
    input: str = "{}"
    #: The workspaces to choose from; null where any may be typed.
    workspaces: tuple[str, ...] | None = None
    workspace: str = ""
    #: The run that this one is to be like.
    like: str | None = None
    #: What to say first.
    notice: Text = ()


def choose_page(names: Sequence[str]) -> StartPage:
    return StartPage(tuple(names))


def start_page(
    runtime: Runtime,
    workflow: Workflow[Any, Any],
    *,
    workspaces: tuple[str, ...] | None,
    workspace: str = "",
    like: str | None = None,
    input: str | None = None,
    notice: Text = (),
) -> StartPage:
    return StartPage(
        names=(),
        workflow=workflow.name,
        description=workflow.description,
        version=workflow.version,
        queue=workflow.queue or runtime.config.queue,
        parameters=tuple(declarations.parameters(workflow.codec.parameters)),
        input=input if input is not None else skeleton(workflow),
        workspaces=workspaces,
        workspace=workspace,
        like=like,
        notice=notice,
    )


def skeleton(workflow: Workflow[Any, Any]) -> str:
    """The parameters that must be given, each null, which few of them take: somebody has to fill it in."""
    fields = workflow.codec.fields
    return json.dumps({name: None for name in fields.codecs if name in fields.required}, indent=2, ensure_ascii=False)
