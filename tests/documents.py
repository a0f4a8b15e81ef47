"""What stands in the pages of `docs` and the README: their blocks of code, and the commands they tell.

Every fence names its language. The blocks of Python of a page run from top to bottom in one namespace, which has `app`,
`db` and `workflows` of an app with its tables, and what the page itself declares:

- `<!-- python` … `-->` is a block that readers do not see;
- `<!-- body: trip=7 -->` says that the next block is part of a workflow's body: it is executed in a run, which is started
  with these arguments and must complete;
- a first line `# shop.py` puts the block in that file; a second block of the file goes to its end. Where a page has
  files named `test_….py`, they are run by pytest. Of `FOLLOWED` pages the shell commands are executed too, in order.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: The pages that hold examples, by their names from the root.
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
)

#: Pages that are done from beginning to end, by `test_first_hour.py`.
FOLLOWED = ("README.md", "docs/quick-start.md", "docs/tutorial.md")

_BLOCK = re.compile(
    r"(?:^<!-- body: *(?P<body>.*?) *-->\n+)?^(?P<fence>```+)(?P<language>.*)\n(?P<text>(?:.*\n)*?)(?P=fence)$"
    r"|^<!-- python\n(?P<hidden>(?:.*\n)*?)-->$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block of a page; `line` is its first one's number. `body` holds the arguments of the run it is part of."""

    page: str
    line: int
    language: str
    text: str
    body: str | None = None

    @property
    def file(self) -> str | None:
        """The file it is written to, where it names one."""
        found = re.match(r"# ([\w/]+\.py)\n", self.text) if self.language == "python" else None
        return found[1] if found else None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(page: str) -> Iterator[Block]:
    """The blocks of a page, in order, with those that readers do not see."""
    text = text_of(page)
    for found in _BLOCK.finditer(text):
        hidden = found["hidden"] is not None
        line = text.count("\n", 0, found.start("hidden" if hidden else "text")) + 1
        if hidden:
            yield Block(page, line, "python", found["hidden"])
        else:
            yield Block(page, line, found["language"], found["text"], found["body"])


def files_of(page: str) -> dict[str, str]:
    """The files that the blocks of a page make."""
    files: dict[str, str] = {}
    for block in blocks_of(page):
        if block.file is not None:
            before = f"{files[block.file]}\n\n" if block.file in files else ""
            files[block.file] = before + block.text.partition("\n")[2]
    return files


def commands_of(page: str) -> Iterator[tuple[str, str]]:
    """Where a page tells a command, and the command: of blocks for a shell, and those of ours and of make in the text."""
    for block in blocks_of(page):
        if block.language in ("sh", "console"):
            for command in _commands(block):
                yield str(block), command
    text = text_of(page)
    for found in re.finditer(r"`((?:flask workflows|make) [^`]+)`", text):
        if "…" not in found[1]:
            yield f"{page}:{text.count(chr(10), 0, found.start()) + 1}", " ".join(found[1].split())


def _commands(block: Block) -> Iterator[str]:
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    for line in lines:
        for command in re.split(r"&&|\|(?!\|)", line):
            if words_of(command):
                yield command.strip()


def words_of(command: str) -> list[str]:
    """The words of a command, without settings of the environment before it."""
    words = shlex.split(command, comments=True)
    while words and (re.match(r"\w+=", words[0]) or words[0] in ("sudo", "export")):
        words.pop(0)
    return words
