"""What workflows, steps, keys, workspaces and queues may be called."""

from __future__ import annotations

import re
import time
from itertools import count
from secrets import randbits

from .errors import DefinitionError
from .errors import InvalidName

_WORKFLOW = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")


def check_workflow_name(name: object, named: str) -> str:
    """`named` says which function it is the name of, and where that stands."""
    if not isinstance(name, str) or not _WORKFLOW.fullmatch(name):
        raise DefinitionError(
            f"{name!r} is no name for the workflow {named}: write 1 to 100 of a-z 0-9 - _ . that start with a "
            'letter or digit, as in @workflow(name="send-invoice")'
        )
    return name


def check_step_name(name: object, named: str, noun: str = "step") -> str:
    """A step's name becomes the key of its record, where `#`, `/` and a leading `$` have a meaning."""
    problem = ""
    if not isinstance(name, str) or not 1 <= len(name) <= 100 or not name.strip():
        problem = "write 1 to 100 characters"
    elif "#" in name or "/" in name or name.startswith("$") or _CONTROL.search(name):
        problem = "leave out '#', '/', control characters and a leading '$'"
    if problem:
        raise DefinitionError(f"{name!r} is no name for the {noun} {named}: {problem}")
    assert isinstance(name, str)
    return name


def check_label(value: object, what: str) -> str:
    """A key, workspace, queue or event name: text of 1 to 255 characters, no control characters."""
    if not isinstance(value, str):
        raise InvalidName(f"the {what} must be text, not {type(value).__name__}: write {what}=str(…)")
    if not 1 <= len(value) <= 255 or not value.strip():
        raise InvalidName(f"the {what} has {len(value)} characters: write 1 to 255, not only spaces")
    if _CONTROL.search(value):
        raise InvalidName(f"the {what} {value!r} has control characters or lone surrogates: leave them out")
    return value


def is_clean(text: str) -> bool:
    """Whether the text has none of the characters that are refused in names, some of which no database can compare."""
    return not _CONTROL.search(text)


#: Counts the ids of this process; 32 bits of it stand in each, so that they sort as they were made.
_sequence = count(randbits(31))


def new_id(milliseconds: int | None = None) -> str:
    """A UUIDv7 (RFC 9562): ids sort by the millisecond they were made in, and within one process beyond it.

    That is now, by this machine's clock, or the one given.
    """
    if milliseconds is None:
        milliseconds = time.time_ns() // 1_000_000
    sequence = next(_sequence) & 0xFFFF_FFFF
    number = milliseconds << 80 | 0x7 << 76 | (sequence >> 20) << 64
    number |= 0b10 << 62 | (sequence & 0xF_FFFF) << 42 | randbits(42)
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def id_at(milliseconds: int) -> str:
    """The lowest id an instant can have, as a bound for ranges of ids."""
    text = f"{milliseconds << 80 | 0x7 << 76 | 0b10 << 62:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


#: What the key of a call in a branch begins with: for each parallel call around it its position, and which function.
_PATH = re.compile(r"(?:\d+\.\d+/)*")


def path_of(key: str) -> str:
    """The path of the branch that a call is in; empty for the body's own."""
    found = _PATH.match(key)
    return found[0] if found is not None else ""
