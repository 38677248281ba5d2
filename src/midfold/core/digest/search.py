"""Searches: the pattern, where, and how many matches in how many files."""

from __future__ import annotations

import re

from midfold.core.digest.action import Action
from midfold.core.digest.failure import last_line
from midfold.core.digest.look import Look, judged, scalar
from midfold.core.digest.wording import plural

PATTERN_KEYS = ("pattern", "regex", "query", "searchterm", "searchpattern", "keyword", "q", "term", "text", "search")
COUNTED_AT_MOST = 65_536

_FOUND = re.compile(
    r"Found (\d{1,9}) (?:total )?(matches|match|files|file|occurrences|occurrence|results|result)\b"
    r"(?:.{0,40}? (?:across|in) (\d{1,9}) files?)?"
)
_NOTHING = re.compile(r"(?:No (?:matches|files|results|occurrences|match|entries)\b|Found 0 |0 (?:matches|results))")
_HIT = re.compile(r"(?:(.{1,500}?):)?\d{1,9}:")
_PLAIN_HIT = re.compile(r"((?:[A-Za-z]:)?[^:\s][^:]{0,500}):")


def search(look: Look) -> Action:
    pattern = look.text(*PATTERN_KEYS)
    where = look.paths()
    did = f"searched for {look.quote(pattern, 70)}" if pattern else "searched"
    glob = look.text("glob", "include", "includepattern", "fileglob", "type")
    if where:
        did += f" in {look.path(where[0])}"
    if glob:
        did += f" ({look.say(glob, 30)})"
    return judged(look, "search", did, _matches(look), paths=where)


def _matches(look: Look) -> str:
    body = look.body
    if body.value is not None:
        return _counted(look)
    head = body.head.lstrip()
    if not head or _NOTHING.match(head):
        return "no matches"
    if found := _FOUND.match(head) or _FOUND.match(last_line(body.text)):
        noun = found[2] if int(found[1]) != 1 else found[2].removesuffix("s").replace("matche", "match")
        files = f" in {plural(int(found[3]), 'file')}" if found[3] else ""
        return f"{int(found[1]):,} {noun}{files}"
    if len(body.text) > COUNTED_AT_MOST:
        return look.size()
    return _count_hits(look)


def _count_hits(look: Look) -> str:
    """Hits of `path:line:text` output; with context lines around them, only those that carry the colon."""
    lines = [line for line in look.body.text.splitlines() if line.strip() and line != "--"]
    context = look.get("a", "b", "c", "context", "beforecontext", "aftercontext") is not None
    found = [hit for line in lines if (hit := _HIT.match(line))]
    if found:
        files = {hit[1] for hit in found if hit[1]}
        count = len(found)
    elif context:
        return look.size()
    else:
        count = len(lines)
        files = {hit[1] for line in lines if (hit := _PLAIN_HIT.match(line))}
    return plural(count, "match") + (f" in {plural(len(files), 'file')}" if files else "")


def _counted(look: Look) -> str:
    """A JSON answer: its own count, or the length of its list."""
    value = look.body.value
    if isinstance(value, list):
        return plural(len(value), "result") if value else "no matches"
    for key in ("total_count", "totalCount", "total", "count", "num_matches", "match_count"):
        if type(value.get(key)) is int:
            return f"{scalar(value[key])} matches"
    for key in ("matches", "results", "files", "items", "hits"):
        if isinstance(value.get(key), list):
            return plural(len(value[key]), "match")
    return look.size()
