"""What operators are not to see: hides secrets in values and texts that are shown.

Keys are judged by their name, texts by what they look like. Hiding too much costs a look into the database, hiding too
little costs a secret: where in doubt, hidden.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .runs import RunError

#: Hidden wherever they stand in a key.
_ANYWHERE = (
    r"pass[_ -]?(?:word|wd|phrase|code)|pwd|secret|token|(?:api|access|signing|encryption).?key|cookie|session|private"
    r"|credential"
)
#: Hidden where a word of the key begins with them, so that `dashboard` and `classname` stay readable.
_AT_WORDS = r"pass(?![a-z])|o?auth(?!or(?![iz]))|(?:credit|debit|bank)?card|cvv|cvc|iban|ssn|t?otp"

_KEY = re.compile(rf"{_ANYWHERE}|(?<![a-z])(?:{_AT_WORDS})", re.IGNORECASE)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

_JWT = re.compile(r"\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)?")
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
#: Up to the `@`, or to where the text was cut off, unless that looks like a port.
_URL_PASSWORD = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]{1,30}://[^\s/:@'\"<>]{0,256}:)"
    r"(?:(?:[^\s/'\"<>]|/(?!/)){1,1024}(?=@)|(?!\d{0,5}[^\w\s'\"<>]*\Z)[^\s/'\"<>]{1,1024}\Z)"
)
_SCHEME = re.compile(r"\b(Bearer|Basic|Digest)(\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_HEADER = re.compile(r"\b((?:set-)?cookie|(?:proxy-)?authorization)(: ?)[^\n\"'}]+", re.IGNORECASE)
#: Begins at the telling word and not at the key's beginning, so that it is tried at few places of a long text.
_PAIR = re.compile(
    rf"""
    (?P<key> (?: {_ANYWHERE} | (?<![a-z]) (?: {_AT_WORDS} ) ) [A-Za-z0-9_.-]{{0,40}} )
    (?P<between> \\{{0,15}} ["']? \s? [ \t]{{0,20}} (?: => | [:=] ) [ \t]* (?: [bru]{{1,2}} (?=\\{{0,15}}["']) )? )
    (?:
        (?P<quote> \\{{0,15}} ["'] ) (?P<quoted> .*? ) (?: (?<!\\) (?P=quote) | \Z )
        | (?P<open> [\[{{(] )
        | (?P<bare> [^\s,;&"'\\)\]}}]+ )
    )
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
#: An escaped character is none.
_MARK = re.compile(r"""\\.|["'\[\]{}()]""", re.DOTALL)


def hides(key: str) -> str | None:
    """The word in a key that hides what stands under it; null for a harmless key."""
    found = _KEY.search(_HUMP.sub("_", key)) or _KEY.search(key)
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
    return _hide_pairs(text)


def _hide_pairs(text: str) -> str:
    parts: list[str] = []
    at = 0
    while (found := _PAIR.search(text, at)) is not None:
        parts.append(text[at : found.start()])
        at = found.end()
        if found["open"] is None:
            parts.append(_hidden_pair(found))
        elif text.startswith("[hidden", at - 1) or _is_code(text, found):
            parts.append(found[0])
        else:
            parts.append(f"{found['key']}{found['between']}[hidden]")
            at = _closing(text, at)
    return "".join((*parts, text[at:]))


def _is_code(text: str, found: re.Match[str]) -> bool:
    """Whether it is a line of a traceback that goes on below: of the code there nothing more is shown."""
    return found["between"][0] in " =" and text[found.end() : found.end() + 1] in ("\n", "")


def _closing(text: str, at: int) -> int:
    """Where what was opened before ends; the end of the text where that was cut off."""
    depth, quote = 1, ""
    for found in _MARK.finditer(text, at):
        mark = found[0]
        if quote:
            quote = "" if mark == quote else quote
        elif mark in "\"'":
            quote = mark
        elif mark in "[{(":
            depth += 1
        elif mark in "]})":
            depth -= 1
            if not depth:
                return found.end()
    return len(text)


def _hidden_pair(found: re.Match[str]) -> str:
    hidden = found["bare"] or found["quoted"]
    if not hidden or hidden.startswith("[hidden") or hidden.lower() in ("bearer", "basic", "digest", "none", "null"):
        return found[0]

    quote = found["quote"] or ""
    return f"{found['key']}{found['between']}{quote}[hidden]{quote}"


def under(path: str, piece: str | int) -> str:
    """The path to a value in an object or array, whose path is given: `$.card`, `$.lines[3]`, `$['a b']`."""
    if isinstance(piece, str) and piece.isidentifier():
        return f"{path}.{piece}"
    return f"{path}[{piece!r}]"


def redact_error(error: RunError) -> RunError:
    """The error with its message and traceback redacted."""
    return replace(
        error,
        message=redact_text(error.message),
        traceback=None if error.traceback is None else redact_text(error.traceback),
    )
