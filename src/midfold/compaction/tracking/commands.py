"""Parse shell commands into programs with their words, redirections and operators.

Parsing is linear and reads at most 60,000 characters of a command. Here-documents are removed before splitting into
words, so that their text is never parsed as commands. Quotes, redirections, `cd`, `NAME=value`, `for NAME in ...` and
`bash -c` are supported; other expansions stay as written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

MAX_COMMAND_CHARS = 60_000
UNKNOWN = "$(…)"
"""Placeholder for the output of a command substitution. The substituted command is a step of its own."""
MAX_DOCUMENTS = 24
MAX_DEPTH = 3

_HERE = re.compile(r"(?<!<)<<-?[ \t]{0,9}(['\"\\]?)([A-Za-z_][\w.-]{0,60})\1?(?!<)")
_PIECE = re.compile(
    r"""[A-Za-z_./=:,+@%~-][^\s'"\\;&|<>()#]*|[ \t\r]+"""
    r"""|'[^']*'|"(?>(?:[^"\\]++|\\.)*)"|\\.|\$\([^()'"\n]{0,300}\)|\$\{[^}\n]{0,100}\}"""
    r"""|\d?>>?&\d|&>>?|\d?>>?\|?|[^\s'"\\;&|<>()#]+|\#|\n|&&|\|\|?|;+|<+|.""",
    re.DOTALL,
)
_JOINERS = frozenset({"&&", "||", "|", ";", ";;", "&", "\n", "(", ")"})
_MARKS = frozenset(" \t\r\n;&|()<>#'\"\\0123456789")
"""First characters of pieces that may be more than a part of a word."""
_REDIRECTS = frozenset({">", ">>", "1>", "1>>", "2>", "2>>", "&>", "&>>", ">|", "<", "0<"})
_KEYWORDS = frozenset({"then", "do", "else", "elif", "if", "while", "until", "!", "{", "}", "fi", "done", "time"})
WRAPPERS = frozenset({"sudo", "nohup", "command", "exec", "env", "rtk", "npx", "bunx", "pnpx", "stdbuf", "nice"})
_RUNNERS = frozenset({"uv", "poetry", "pipenv", "pdm", "hatch", "rye"})
_ASSIGNED = re.compile(r"[A-Za-z_]\w{0,60}=")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w{0,60})\}?")
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})


class Step(msgspec.Struct, gc=False):
    """One program of a shell command."""

    words: list[str]
    writes: list[tuple[str, bool]]
    """Files its output is redirected to, and whether it appends."""
    reads: list[str]
    joiner: str
    """Operator after it."""
    folder: str = ""
    """Working directory, as far as the command sets it."""
    document: str | None = None
    """Text of its here-document."""
    wrapper: str = ""
    """Program that runs it: `rtk`, `npx`, `sudo`."""

    @property
    def program(self) -> str:
        return self.words[0].rpartition("/")[2]


def steps_of(command: str, folder: str = "", depth: int = 0) -> list[Step]:
    """Return the programs of a command, in order."""
    command = command[:MAX_COMMAND_CHARS].replace("\x00", "")
    documents: list[str] = []
    if "<<" in command:
        command, documents = _without_documents(command)
    found: list[Step] = []
    variables: dict[str, list[str]] = {}
    for step in _split(command, documents):
        words = _own_words(step.words, variables)
        if not words:
            if step.writes:
                step.words, step.folder = [":"], folder
                found.append(step)
            continue
        if "$" in command:
            words = [item for word in words for item in _expand(word, variables)]
            step.writes = [(item, end) for path, end in step.writes for item in _expand(path, variables)]
        if words[-1] is not step.words[0] and step.words[0] in WRAPPERS:
            step.wrapper = step.words[0]
        if words[0] == "cd":
            folder = join(folder, words[1]) if len(words) > 1 else folder
            continue
        step.words, step.folder = words, folder
        inner = _inner_command(words)
        if inner and depth < MAX_DEPTH:
            found += steps_of(inner, folder, depth + 1)
        else:
            found.append(step)
    return found


def join(folder: str, path: str) -> str:
    return path if path.startswith(("/", "~")) or not folder else f"{folder}/{path}"


def _without_documents(command: str) -> tuple[str, list[str]]:
    """Replace each here-document by a placeholder; return the command and the documents."""
    texts: list[str] = []
    pieces: list[str] = []
    position = 0
    for _ in range(MAX_DOCUMENTS):
        start = _HERE.search(command, position)
        line_end = command.find("\n", start.end()) if start else -1
        if start is None or line_end < 0:
            break
        end = _end_of_document(command, line_end, start[2])
        if end is None:
            pieces.append(command[position : start.end()])
            position = start.end()
            continue
        texts.append(command[line_end + 1 : max(end[0], line_end + 1)])
        pieces += [command[position : start.start()], f" \x00{len(texts) - 1}\x00 ", command[start.end() : line_end]]
        pieces.append("\n")
        position = end[1]
    return "".join(pieces) + command[position:], texts


def _end_of_document(command: str, start: int, word: str) -> tuple[int, int] | None:
    """Return the end of the document and the offset at which the command continues."""
    position = start
    for _ in range(200):
        at = command.find(word, position + 1)
        if at < 0:
            return None
        line = command.rfind("\n", start, at)
        after = at + len(word)
        if (
            line >= 0
            and not command[line + 1 : at].strip()
            and command[after : after + 1] in ("", "\n", "\r", ")", " ")
        ):
            return line, after
        position = at
    return None


def _split(command: str, documents: list[str]) -> Iterator[Step]:
    step = Step([], [], [], "")
    word: str | None = None
    redirect = ""
    is_comment = False
    for piece in _PIECE.findall(command):
        if is_comment:
            if piece != "\n":
                continue
            is_comment = False
        first = piece[0]
        is_space = first in " \t\r"
        if first not in _MARKS:
            word = piece if word is None else word + piece
        elif is_space or piece in _JOINERS or piece in _REDIRECTS:
            if word is not None:
                word = f"{word[:-1]}{UNKNOWN}" if piece == "(" and word.endswith("$") else word
                redirect = _end_word(step, word, redirect, documents)
                word = None
            if is_space:
                continue
            if piece in _REDIRECTS:
                redirect = piece
            elif step.words or step.writes:
                step.joiner = piece
                yield step
                step, redirect = Step([], [], [], ""), ""
        elif first == "#" and word is None:
            is_comment = True
        elif piece[-2:-1] == "&" and ">" in piece:
            continue
        else:
            word = _bare(piece) if word is None else word + _bare(piece)
    if word is not None:
        _end_word(step, word, redirect, documents)
    if step.words or step.writes:
        yield step


def _bare(piece: str) -> str:
    """Return a piece of a word without its quotes."""
    if piece[0] == "'" and len(piece) > 1:
        return piece[1:-1]
    if piece[0] == '"' and len(piece) > 1:
        return piece[1:-1].replace('\\"', '"').replace("\\\n", "")
    return piece[1:].replace("\n", "") if piece[0] == "\\" and len(piece) == 2 else piece


def _end_word(step: Step, word: str, redirect: str, documents: list[str]) -> str:
    if not redirect and "\x00" not in word:
        step.words.append(word)
    elif word.startswith("\x00") and word.strip("\x00").isdecimal():
        step.document = documents[int(word.strip("\x00"))]
    elif not redirect:
        step.words.append(re.sub(r"\x00(\d{1,3})\x00", lambda found: documents[int(found[1])], word))
    elif redirect in ("<", "0<"):
        step.reads.append(word)
    elif not redirect.startswith("2"):
        step.writes.append((word, redirect.endswith(">>")))
    return ""


def _own_words(words: list[str], variables: dict[str, list[str]]) -> list[str]:
    """Return the words from the program on; record assignments and loop variables."""
    at = 0
    while at < len(words):
        word = words[at]
        if word in _KEYWORDS:
            at += 1
        elif word == "for" and words[at + 2 : at + 3] == ["in"]:
            variables[words[at + 1]] = words[at + 3 :][:50]
            return []
        elif "=" in word and _ASSIGNED.match(word):
            name, _, value = word.partition("=")
            variables[name] = [value]
            at += 1
        elif word in WRAPPERS and at + 1 < len(words):
            at += 1
            while at < len(words) - 1 and (words[at].startswith("-") or words[at] == "proxy"):
                at += 1
        elif word in _RUNNERS and words[at + 1 : at + 2] == ["run"] and at + 2 < len(words):
            at += 2
            while at < len(words) - 1 and words[at].startswith("-"):
                at += 1
        elif word == "bundle" and words[at + 1 : at + 2] == ["exec"] and at + 2 < len(words):
            at += 2
        elif word == "timeout" and at + 2 < len(words):
            at += 1
            while at < len(words) - 1 and (words[at].startswith("-") or words[at][:1].isdigit()):
                at += 1
        else:
            return words[at:]
    return []


def _expand(word: str, variables: dict[str, list[str]]) -> list[str]:
    found = _VARIABLE.search(word) if "$" in word else None
    if found is None or found[1] not in variables:
        return [word]
    return [word[: found.start()] + value + word[found.end() :] for value in variables[found[1]]]


def _inner_command(words: list[str]) -> str:
    """Return the command of `bash -c '...'`."""
    if len(words) < 3 or not words[1].startswith("-") or words[0].rpartition("/")[2] not in _SHELLS:
        return ""
    return words[2] if words[1].endswith("c") else ""
