"""What failures have in common.

Runs that failed the same way are one trouble, though each has its own ids and numbers in its message. Nothing here is
asked of runs that do not fail.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from .payloads import Frame
from .payloads import read_traceback

_MESSAGE_LIMIT = 2_000

#: Stands for what differs from one failure to the next.
_GAP = "…"
_QUOTED = re.compile(r"""(?<!\w)(["'`])(?:\\.|(?!\1)[^\\\n])*\1(?!\w)""")
_ADDRESS = re.compile(r"[^\s@<>\"'(),;]{1,64}@[\w-]+(?:\.[\w-]+)+")
_UUID = re.compile(r"\b[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}\b", re.IGNORECASE)
_HEX = re.compile(r"\b0x[0-9a-f]+\b|\b(?=[a-f]*[0-9])[0-9a-f]{8,}\b", re.IGNORECASE)
_WORD = re.compile(r"\w{10,}")
_DIGITS = re.compile(r"\d+")
_BLANK = re.compile(r"\s+")
_REPEATED = re.compile(r"#\d+")


def cause_of(workflow: str, described: Mapping[str, Any]) -> str:
    """A short hash of what an error has in common with others of its cause, of an error as `failures.describe` gives it.

    Two failures have one cause if they agree in the workflow, the step, the exception's class, its message without
    quoted texts, numbers, ids and addresses, and the innermost function of the app's own code that it went through:
    by its name and its file's, not by its line, so that the cause outlives a deploy.
    """
    parts = [
        workflow,
        _REPEATED.sub("", str(described.get("step") or "")),
        str(described.get("type") or ""),
        normalised(str(described.get("message") or "")),
        innermost(str(described.get("traceback") or "")),
    ]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def normalised(message: str) -> str:
    """The message without what differs from one failure to the next."""
    text = _QUOTED.sub(_GAP, message[:_MESSAGE_LIMIT])
    for pattern in (_ADDRESS, _UUID, _HEX):
        text = pattern.sub(_GAP, text)
    text = _WORD.sub(lambda found: _GAP if _looks_made_up(found[0]) else found[0], text)
    return _BLANK.sub(" ", _DIGITS.sub(_GAP, text)).strip()


def _looks_made_up(word: str) -> bool:
    """Whether a long word is an id, such as `cus_N3xK9dQ2`."""
    return sum(character.isdigit() for character in word) >= 2


def innermost(traceback: str) -> str:
    """File and function of the last frame that is in no library; empty where there is none.

    Of the file's path the last two parts count: what lies above them may be another folder on another machine.
    """
    frames = [entry for entry in read_traceback(traceback) if isinstance(entry, Frame)]
    if not frames:
        return ""
    file = "/".join(re.split(r"[/\\]", frames[-1].file)[-2:])
    return f"{file}:{frames[-1].function}"
