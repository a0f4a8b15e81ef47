"""Texts that somebody types, pastes or sends: each is refused with a word of why, or can be used in every place."""

from __future__ import annotations

#: By a name for the report, as the texts themselves would spoil it.
TEXTS = {
    "empty": "",
    "blank": " ",
    "blanks": " \t\u00a0\u2003",
    "dot": ".",
    "dots": "..",
    "up": "../../etc/passwd",
    "slash": "/",
    "inner slash": "a/b",
    "two slashes": "//evil.example/x",
    "backslash": "a\\b",
    "query": "?x=1&y",
    "fragment": "#",
    "counted": "send#2",
    "branch": "2.0/send",
    "percent nul": "%00",
    "percent slash": "a%2Fb",
    "wildcards": "%_%",
    "placeholders": "%s %(x)s :name $1 {} {0} ${x}",
    "template": "{{ 7*7 }}{% raw %}",
    "single quote": "it's",
    "double quote": 'say "so"',
    "sql": "'; DROP TABLE workflow_runs;--",
    "image": "<img src=x onerror=alert(1)>",
    "script": "</script><script>alert(1)</script>",
    "attribute": "\"' onmouseover=alert(1) x='",
    "javascript": "javascript:alert(1)",
    "entity": "&lt;b&gt;&amp;#39;",
    "none": "None",
    "null": "null",
    "true": "true",
    "number": "0",
    "big number": "9" * 40,
    "dollar": "$wait:paid",
    "own": "$bulk",
    "at": "@",
    "dash": "-",
    "option": "--help",
    "colon": "key:x is:failed",
    "comma": "a,b;c|d",
    "arabic": "\u0645\u0631\u062d\u0628\u0627",
    "override": "\u202eexe.fdp",
    "joined": "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "combining": "e\u0301\u0300\u0300",
    "composed": "\u00e9",
    "emoji": "\U0001f642",
    "zero width": "\u200b",
    "byte order": "\ufeffa",
    "padded": " a ",
    "not a character": "\uffff",
    "nul": "a\0b",
    "lone surrogate": "a\ud800",
    "turned surrogates": "\udc00\ud800",
    "lines": "a\r\nX-Brought: x",
    "line": "a\nb",
    "tab": "a\tb",
    "line separator": "a\u2028b",
    "escape": "\x1b[2J\x1b]0;x\x07",
    "c1 escape": "\x9b2J",
    "delete": "a\x7f",
    "longest": "x" * 255,
    "longest wide": "".join(chr(0x20000 + number * 7919 % 0xA000) for number in range(255)),
    "too long": "x" * 256,
    "far too long": "\u20ac" * 5_000,
}

#: What no name may have in it, and no terminal may be sent.
_REFUSED = {
    *("empty", "blank", "blanks", "nul", "lone surrogate", "turned surrogates", "lines", "line", "tab"),
    *("line separator", "escape", "c1 escape", "delete", "too long", "far too long"),
}

#: Those that keys, workspaces, queues, events and messages may have.
LABELS = {name: text for name, text in TEXTS.items() if name not in _REFUSED}


#: One of each kind, for places that are many.
WORST = {
    name: TEXTS[name]
    for name in (
        *("empty", "dots", "inner slash", "query", "percent nul", "placeholders", "template", "sql", "attribute"),
        *("script", "big number", "at", "option", "colon", "override", "nul", "lone surrogate", "lines", "escape"),
        *("c1 escape", "longest wide", "far too long"),
    )
}
