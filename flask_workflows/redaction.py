"""What operators are not to see: hides secrets in values and texts that are shown.

Keys are judged by their name, texts by what they look like. Hiding too much costs a look into the database, hiding too
little costs a secret: where in doubt, hidden.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .runs import RunError

#: Hidden wherever they stand in a key.
_ANYWHERE = r"pass(?:word|wd|phrase)|secret|token|api.?key|cookie|session|private|credential"
#: Hidden where a word of the key begins with them, so that `dashboard` and `classname` stay readable.
_AT_WORDS = r"auth(?!or(?![iz]))|card|cvv|cvc|iban|ssn|otp"

_KEY = re.compile(rf"{_ANYWHERE}|(?<![a-z])(?:{_AT_WORDS})", re.IGNORECASE)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_JWT = re.compile(r"\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)?")
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_URL_PASSWORD = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{1,30}://[^\s/:@'\"<>]{0,256}:)[^\s/'\"<>]{1,1024}(?=@)")
_SCHEME = re.compile(r"\b(Bearer|Basic|Digest)(\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_HEADER = re.compile(r"\b((?:set-)?cookie|(?:proxy-)?authorization)(: ?)[^\n\"'}]+", re.IGNORECASE)
#: Begins at the telling word and not at the key's beginning, so that it is tried at few places of a long text.
_PAIR = re.compile(
    rf"""
    (?P<key> (?: {_ANYWHERE} | (?<![a-z]) (?: {_AT_WORDS} ) ) [A-Za-z0-9_.-]{{0,40}} )
    (?P<between> \\?["']? \s? (?: => | [:=] ) [ \t]* )
    (?: (?P<quote> \\?["'] ) (?P<quoted> .*? ) (?P=quote) | (?P<bare> [^\s,;&"'\\)\]}}]+ ) )
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def hides(key: str) -> str | None:
    """The word in a key that hides what stands under it; null for a harmless key."""
    found = _KEY.search(_HUMP.sub("_", key))
    return None if found is None else found[0].lower()


def redact_text(text: str) -> str:
    """The text with what looks like a secret in it replaced."""
    if "-----BEGIN " in text:
        text = _PEM.sub(lambda found: f"[hidden: {found[1].lower()}]", text)
    if "eyJ" in text:
        text = _JWT.sub("[hidden: JWT]", text)
    if "://" in text:
        text = _URL_PASSWORD.sub(r"\1[hidden]", text)
    text = _HEADER.sub(r"\1\2[hidden]", text)
    text = _SCHEME.sub(r"\1\2[hidden]", text)
    return _PAIR.sub(_hide_pair, text)


def _hide_pair(found: re.Match[str]) -> str:
    hidden = found["bare"] or found["quoted"]
    if not hidden or hidden.startswith("[hidden") or hidden.lower() in ("bearer", "basic", "digest", "none", "null"):
        return found[0]

    quote = found["quote"] or ""
    return f"{found['key']}{found['between']}{quote}[hidden]{quote}"


def redact_error(error: RunError) -> RunError:
    """The error with its message and traceback redacted."""
    return replace(
        error,
        message=redact_text(error.message),
        traceback=None if error.traceback is None else redact_text(error.traceback),
    )
