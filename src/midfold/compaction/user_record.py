"""Carry the user's own words verbatim through every compaction.

A handoff opens with this record: open tasks, standing rules, prohibitions, corrections and decisions, as the user
wrote them. It is built from the messages and from the record of the previous handoff, never from a summary, so it
does not depend on who writes the summary.

Theory of operation:

1. `words_of` extracts what the user typed from a message; client wrappers and tool output are not the user's words.
2. `parse_record` reads the record back from a handoff known to be genuine. Only its very beginning is read, and
   each entry states its number of lines, so no quoted text can end the record or add an entry.
3. `UserRecord.build` keeps everything while the budget lasts. Otherwise it keeps, in this order: rules, the newest
   request and plans in full, the outline of plans that do not fit, decisions and corrections, then other messages,
   the short and new ones first. Omissions from the first four are reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from midfold.compaction.receipt import OmittedWords
from midfold.transcript.message import CALL, Message, ToolCall, ToolResult
from midfold.transcript.tokens import estimate_text
from midfold.transcript.wrappers import reply_in_result, user_words

HEADING = "## The User's Words"
DETAILS = " (verbatim, oldest first; rules hold until changed, tasks are open unless marked finished)"
TERSE_DETAILS = " (verbatim)"
HEADING_TOKENS = 24
COPIED_HEADING = "## Words Quoted"
"""Heading that replaces HEADING in a text that is not a record."""
LABEL_TOKENS = 4
GAP = "[…]"
FINISHED = "reported finished"
SHORTENED = "shortened"
CHANGED = "changed by "
MAX_WORDS_SHARE = 0.5
"""Maximum share of a view for the user's tasks, rules, decisions and corrections."""
MAX_OTHER_SHARE = 0.05
"""Maximum share of a view for other messages of the user."""
DECISIONS_SHARE = 0.25
"""Share of the record that tasks leave to decisions and corrections."""
SHORT_TOKENS = 60
"""Maximum tokens of a message that is kept or omitted as a whole."""
MIN_PLAN_ITEMS = 3
MIN_TASK_TOKENS = 25
"""Minimum tokens of a message without a list that can be a task of its own: "Go on." is none."""
MAX_LINE_CHARACTERS = (600, 240, 120, 60, 40)
"""Maximum characters of the lines of an outline, tried in order until they fit."""
MAX_READ_CHARACTERS = 200_000
"""Characters of one message, half of them at each end, that are searched for rules: that takes 0.1 s."""
NEAR_START = 24
"""Maximum characters before a rule phrase for the line to be a directive."""
LONG_LINE = 200
RULE_LEVEL = 2
MIN_SHARED_WORDS = 2
SHARED_SHARE = 0.5

Redact = Callable[[str], str]


class Phrases(NamedTuple):
    """Patterns of rules and decisions in one language."""

    rules: str
    decisions: str


LANGUAGES = {
    "English": Phrases(
        r"\b(?:never|always|do not|don['’]t|must|mustn['’]t|shall|should(?: not|n['’]t)|no longer|from now on|only"
        r"|avoid|under no circumstances|make sure|be sure|not allowed|forbidden|prohibited|off[- ]limits|rules?"
        r"|non-negotiable|constraints?|requirements?|keep in mind|remember|stick (?:to|with)|untouched|unless|prefer"
        r"|at (?:most|least)|no more than|without (?:touching|changing|asking|breaking)|let['’]s not|needs? to"
        r"|required|important)\b",
        r"\b(?:actually|scratch that|forget|ignore|let['’]s|we(?:['’]ll| will| should|['’]re going to)|go with|instead"
        r"|final answer|decided|decision|agreed|i want|i(?:['’]d| would) (?:like|prefer|rather)|plan\b.{0,20}:|rather"
        r"|switch to|change of plan|correction|i meant|wait|stop|off the table|swap|revert|use|owns?|leads?|call it)\b",
    ),
    "German": Phrases(
        r"\b(?:nie|niemals|immer|keine?[nrms]?|nicht|muss|müssen|musst|darf|dürfen|auf keinen fall|unbedingt|nur"
        r"|ab (?:jetzt|sofort)|verboten|vermeide[nt]?|außer|höchstens|mindestens|regeln?|wichtig|bitte nicht)\b",
        r"\b(?:eigentlich|stattdessen|statt|lieber|lass(?:t)? uns|wir (?:nehmen|machen|verwenden)|entschieden"
        r"|entscheidung|vergiss|korrektur|ich meinte|doch|nimm|verwende|benutze)\b",
    ),
    "French": Phrases(
        r"\b(?:jamais|toujours|(?:ne|n['’])\s?.{1,24}\bpas|il faut|doit|doivent|devez|dois|interdite?s?|uniquement"
        r"|seulement|désormais|dorénavant|à partir de maintenant|évite[rz]?|règles?|obligatoire|surtout pas|sauf)\b",
        r"\b(?:finalement|en fait|plutôt|au lieu|oublie[rz]?|on (?:va|prend|choisit)|décidé|décision|je voulais dire"
        r"|correction|utilise[rz]?)\b",
    ),
    "Spanish": Phrases(
        r"\b(?:nunca|jamás|siempre|no \w{2,20}[ae]s|no se (?:puede|debe)|prohibid[oa]s?|debe[ns]?|debes|hay que|solo"
        r"|sólo|únicamente|a partir de ahora|evita|reglas?|obligatori[oa]|bajo ningún|salvo)\b",
        r"\b(?:en realidad|mejor|olvida|vamos a|decidido|decisión|quise decir|corrección|en (?:lugar|vez) de|usa)\b",
    ),
    "Russian": Phrases(
        r"\b(?:никогда|всегда|нельзя|не \w{2,20}(?:й|йте|ть)|запрещ\w{1,6}|только|долж\w{1,4}|обязательно|отныне|впредь"
        r"|с этого момента|избега\w{1,6}|ни в коем случае|правил[оа]|кроме|важно)\b",
        r"\b(?:на самом деле|лучше|забудь|давай(?:те)?|решил[иао]?|решено|я имел[а]? в виду|исправл\w{1,6}|вместо"
        r"|используй(?:те)?)\b",
    ),
    "Chinese": Phrases(
        r"不要|不得|不能|不可|不许|禁止|切勿|绝不|永远|从不|总是|始终|必须|务必|一定要|只能|只用|从现在起|今后|避免|规则"
        r"|除非|最多|至少|请勿|别",
        r"其实|算了|决定|我们用|就用|换成|改为|改用|而不是|更正|我的意思|不对|忘掉",
    ),
    "Japanese": Phrases(
        r"絶対|決して|必ず|常に|禁止|しないで|しないこと|てはいけ|てはなら|ないでください|なければ|べき|のみ|今後|避け"
        r"|ルール|厳守|だけに",
        r"やっぱり|やはり|実は|決め|にしましょう|にします|訂正|忘れて|変更|代わりに|ではなく",
    ),
}
"""Phrases by which rules and decisions are recognised. In other languages short messages are kept."""
_RULE = re.compile("|".join(phrases.rules for phrases in LANGUAGES.values()), re.I)
_DECISION = re.compile("|".join(phrases.decisions for phrases in LANGUAGES.values()), re.I)
_REVOKES = re.compile(
    r"\b(?:no longer|instead|scratch that|forget|ignore|changed? (?:my mind|of plan)|off the table|not any ?more|swap"
    r"|stattdessen|vergiss|nicht mehr|au lieu|oublie|plutôt|olvida|en (?:lugar|vez) de|вместо|забудь|больше не)\b"
    r"|改为|改用|换成|不再|代わりに|ではなく|もう",
    re.I,
)
_ITEM = re.compile(r"[ \t]{0,8}(?:[0-9]{1,3}[.):]|[-*+•]|\[[ xX]\]|[a-z][.)])[ \t]")
_HEADING = re.compile(r"[ \t]{0,3}(?:#{1,6} |\*\*[^*\n]{1,80}\*\*:?$)|[^\n.!?]{1,60}:$")
_MACHINE = re.compile(
    r"[ \t]{0,40}(?:Traceback|File \"|at [\w.$]{1,80}\(|\w{1,40}(?:Error|Exception)\b|[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]"
    r"|\[?(?:ERROR|WARN|WARNING|INFO|DEBUG)\b|[+>$|]|//|/\*|[)}\]];?$)"
)
"""Starts of lines that a program wrote; no rule is read from them."""
_SENTENCE_END = re.compile(r"(?<=[.!?]) +|(?<=[。！？])")
_FINISHED = re.compile(
    r"\b(?:everything (?:you asked for |on the list |in the plan )?(?:is|has been) (?:now )?"
    r"(?:done|finished|complete[d]?|implemented)"
    r"|all (?:of )?(?:the )?(?P<count>[0-9]{1,3} )?(?:items|tasks|points|requirements|steps)"
    r"(?: (?:of|in|on|from) (?:the|your) (?:plan|list|task))? (?:are|have been) (?:now )?(?:done|finished|complete[d]?)"
    r"|the (?:whole |entire )?(?:task|plan) is (?:now )?(?:done|finished|complete[d]?)"
    r"|(?:alle|sämtliche) (?:punkte|aufgaben) sind (?:erledigt|fertig)|tout est (?:terminé|fini)"
    r"|todo está (?:terminado|listo))\b|全部完成|すべて完了|всё (?:готово|сделано)",
    re.I,
)
_NOT_FINISHED = re.compile(r"\b(?:not|except|but|remain|remaining|left|still|todo|once|when|until|if)\b", re.I)
_ACCEPTED = re.compile(
    r"(?:(?:thanks|thank you|great|perfect|danke|merci|gracias)[,.! ]{1,3})?(?:that|everything|all|it)(?:['’]s| is) "
    r"(?:all )?(?:done|finished)\b",
    re.I,
)
_WORD = re.compile(r"\w{4,40}")
_ENTRY = re.compile(r"\[([0-9]{1,6})((?:, [^,\]\n]{1,60}){0,5})\] ?([^\n]*)")
_LINES = re.compile(r"([0-9]{1,7}) lines")
_HANDLE = re.compile(r"original (mf-[0-9a-f]{6,12})")


class Words(msgspec.Struct, frozen=True):
    """Words of the user: one message, or what is left of it."""

    text: str
    handle: str = ""
    """Handle of the message, if known."""
    is_finished: bool = False
    is_whole: bool = True
    is_reply: bool = False
    """True if the user only answered a question of the assistant."""


class RecordText(NamedTuple):
    """User's words as a handoff quotes them, their size, and the rules and tasks that did not fit."""

    text: str = ""
    tokens: int = 0
    omitted: tuple[OmittedWords, ...] = ()


NO_RECORD = RecordText()


def words_of(message: Message, tools: dict[str, str]) -> list[tuple[str, bool]]:
    """Return what the user said in a message, and whether it answers a question; `tools` collects names of calls."""
    found: list[tuple[str, bool]] = []
    for part in message.parts if message.kinds & ~1 else ():
        if isinstance(part, ToolCall):
            tools[part.id] = part.name
        elif isinstance(part, ToolResult) and (reply := reply_in_result(tools.get(part.call_id, ""), part)):
            found.append((reply, True))
    if words := user_words(message):
        found.append((words, False))
    return found


def reports_finished(message: Message) -> str:
    """Return the assistant's report that everything is finished; empty if the message has none."""
    if message.role != "assistant" or message.kinds & CALL:
        return ""
    for sentence in _SENTENCE_END.split(message.text.replace("\n", " ")[:4_000]):
        if (report := _FINISHED.search(sentence)) and not _NOT_FINISHED.search(sentence):
            return f"{report['count'] or ''}{report[0]}"
    return ""


def parse_record(body: str) -> tuple[list[Words], str]:
    """Return the entries of the record at the start of a handoff's body, and the rest of the body."""
    lines = body.split("\n")
    if not lines[0].startswith(HEADING):
        return [], body
    entries: list[Words] = []
    at = 1
    while at < len(lines) and (label := _ENTRY.fullmatch(lines[at])):
        count = int(found[1]) if (found := _LINES.search(label[2])) else 0
        text = "\n".join(lines[at + 1 : at + 1 + count]) if count else label[3]
        handle = found[1] if (found := _HANDLE.search(label[2])) else ""
        entries.append(Words(text, handle, FINISHED in label[2], SHORTENED not in label[2]))
        at += 1 + count
    return entries, "\n".join(lines[at:]).strip("\n")


def without_record(text: str) -> str:
    """Return a summary in which nothing can be taken for a record; a copied record is dropped."""
    if HEADING not in text:
        return text
    before, _, rest = text.partition(HEADING)
    entries, after = parse_record(HEADING + rest)
    kept = after if entries else f"{COPIED_HEADING}{rest}"
    return f"{before}{kept.replace(HEADING, COPIED_HEADING)}".strip()


def is_rule(text: str) -> bool:
    """Return whether a text of the user states a rule, a decision or a correction."""
    return any(unit.level for unit in _units(text))


class UserRecord:
    """Entries of one conversation up to now, oldest first."""

    def __init__(self, entries: Iterable[Words] = ()) -> None:
        self.entries: list[Words] = list(entries)
        self._seen = {key for entry in self.entries for key in (entry.text, entry.handle) if key}
        """Texts and handles of all entries: most words are in no earlier entry, and those are not searched."""

    def add(self, words: Words) -> None:
        """Append words; a message that is already in the record, whole or shortened, is kept once."""
        same = []
        if words.text in self._seen or words.handle in self._seen:
            same = [
                place
                for place, entry in enumerate(self.entries)
                if entry.text == words.text or (not entry.is_whole and entry.handle == words.handle != "")
            ]
        self._seen.update(filter(None, (words.text, words.handle)))
        for place in reversed(same):
            if self.entries[place].is_finished and self.entries[place].text == words.text:
                words = msgspec.structs.replace(words, is_finished=False)
            del self.entries[place]
        if _ACCEPTED.match(words.text) and self.entries:
            self.finish("everything")
        self.entries.append(words)

    def finish(self, report: str) -> None:
        """Mark the tasks that a report of the assistant covers as finished."""
        count = int(digits[0]) if (digits := re.match("[0-9]+", report)) else 0
        covers_all = "everything" in report.lower() or bool(count)
        for place in range(len(self.entries) - 1, -1, -1):
            entry = self.entries[place]
            items = _items(entry.text)
            is_only_rule = all(unit.level >= RULE_LEVEL for unit in _units(entry.text))
            if is_only_rule or (count and items > count):
                continue
            self.entries[place] = msgspec.structs.replace(entry, is_finished=True)
            if not covers_all or (count and items == count):
                return

    def build(self, max_tokens: int, max_other_tokens: int, *, terse: bool) -> RecordText:
        """Return the record within its budget, and the rules, decisions and tasks that did not fit."""
        if not self.entries:
            return NO_RECORD
        selection = _Selection(self.entries, max_tokens - HEADING_TOKENS, max_other_tokens)
        entries: list[Words] = []
        omitted: list[OmittedWords] = []
        for entry, units, text in zip(self.entries, selection.units, selection.choose(), strict=True):
            if text != entry.text and (lost := _lost_tokens(units, text)):
                omitted.append(OmittedWords(handle=entry.handle, tokens=lost, kept_tokens=estimate_text(text)))
            if text:
                entries.append(
                    msgspec.structs.replace(entry, text=text, is_whole=entry.is_whole and text == entry.text)
                )
        text = _render(entries, terse=terse)
        return RecordText(text, estimate_text(text), tuple(omitted))


def missing_words(record: UserRecord, seen: str) -> tuple[OmittedWords, ...]:
    """Return the rules, decisions and tasks that a text does not contain verbatim."""
    said = " ".join(seen.split())
    return tuple(
        OmittedWords(handle=entry.handle, tokens=estimate_text(entry.text), kept_tokens=0)
        for entry in record.entries
        if " ".join(entry.text.split()) not in said and (is_rule(entry.text) or _items(entry.text) >= MIN_PLAN_ITEMS)
    )


def _render(entries: Sequence[Words], *, terse: bool) -> str:
    if not entries:
        return ""
    changes = _changes([entry.text for entry in entries])
    lines = [HEADING + (TERSE_DETAILS if terse else DETAILS)]
    for number, entry in enumerate(entries, 1):
        notes = [str(number)]
        notes += [CHANGED + str(changes[number])] if number in changes else []
        notes += [FINISHED] if entry.is_finished else []
        notes += [] if entry.is_whole else [SHORTENED]
        notes += [f"original {entry.handle}"] if entry.handle and not entry.is_whole else []
        count = entry.text.count("\n") + 1
        if count == 1:
            lines.append(f"[{', '.join(notes)}] {entry.text}")
        else:
            lines += [f"[{', '.join([*notes, f'{count} lines'])}]", entry.text]
    return "\n".join(lines)


def _changes(texts: Sequence[str]) -> dict[int, int]:
    """Return the numbers of rules and decisions that a later entry revokes, each with the number of that entry."""
    found: dict[int, int] = {}
    words = [set(_WORD.findall(text.lower())) if len(text) <= 600 else set() for text in texts]
    for later, text in enumerate(texts):
        if not words[later] or not _REVOKES.search(text):
            continue
        for earlier in range(later):
            shared = len(words[earlier] & words[later])
            if shared >= max(MIN_SHARED_WORDS, SHARED_SHARE * len(words[earlier])):
                found[earlier + 1] = later + 1
    return found


class WordsLine(NamedTuple):
    """Line of an entry, or a sentence of a long line."""

    text: str
    line: int
    level: int


def _units(text: str) -> list[WordsLine]:
    """Return the lines that are read of a text; a command in a fence below a rule ("Run exactly:") belongs to it."""
    units: list[WordsLine] = []
    is_code = False
    demanded = 0
    for number, line in enumerate(_readable(text).split("\n")):
        is_fence = line.lstrip().startswith("```")
        pieces = [line] if len(line) <= LONG_LINE or is_code else _SENTENCE_END.split(line)
        is_machine = is_code or is_fence or _MACHINE.match(line) is not None
        for piece in filter(str.strip, pieces):
            level = demanded if is_machine else _level(piece)
            units.append(WordsLine(piece, number, level))
            announces = line.rstrip().endswith(":") and level >= RULE_LEVEL
            demanded = level if announces or (is_machine and not (is_code and is_fence)) else 0
        is_code ^= is_fence
    return units


def _level(text: str) -> int:
    """Return 3 for a directive, 2 for a line with a rule in it, 1 for a decision or a correction, else 0."""
    if (rule := _RULE.search(text)) is not None:
        return 3 if rule.start() <= NEAR_START else 2
    return 1 if _DECISION.search(text) is not None else 0


def _items(text: str) -> int:
    return sum(_ITEM.match(line) is not None for line in text.split("\n"))


def _lost_tokens(units: Iterable[WordsLine], kept: str) -> int:
    """Return the tokens of rules, decisions and items of a text that are not kept."""
    lost = (unit.text for unit in units if unit.level or _ITEM.match(unit.text))
    return sum(estimate_text(text) for text in lost if text.strip() not in kept)


class _Selection:
    """Selection of what is kept of each entry."""

    def __init__(self, entries: Sequence[Words], budget: int, other_budget: int) -> None:
        self.entries = entries
        self.left = budget
        self.other_left = other_budget
        self.sizes = [estimate_text(entry.text) + LABEL_TOKENS for entry in entries]
        self.units = [_units(entry.text) for entry in entries]
        self.kept: list[set[int] | None] = [set() for _ in entries]
        """Indices of the kept units; None for the whole text."""

    def choose(self) -> list[str]:
        """Return the kept text of each entry; empty for those that are omitted."""
        units = self.units
        newest_first = range(len(units) - 1, -1, -1)
        found = self._find_tasks()
        tasks = [at for at in newest_first if at in found]
        others = {at for at in newest_first if at not in found and not any(unit.level for unit in units[at])}
        needed = sum(self.sizes) - sum(self.sizes[at] for at in others)
        if needed <= self.left:
            for at in newest_first:
                if at not in others:
                    self._keep_whole(at)
        else:
            self._keep_units(newest_first, RULE_LEVEL)
            reserve = min(sum(self._cost(at, 1) for at in newest_first), int(self.left * DECISIONS_SHARE))
            for at in tasks:
                self._keep_whole(at, reserve)
            for at in tasks:
                self._keep_outline(at, reserve)
            self._keep_units(newest_first, 1)
        self.left = min(self.left, self.other_left)
        for at in sorted(others, key=lambda at: (self.sizes[at] > SHORT_TOKENS, -at)):
            self._keep_whole(at)
            if self.sizes[at] > SHORT_TOKENS and units[at]:
                self._keep_unit(at, len(units[at]) - 1)
        return [self._text(at) for at in range(len(units))]

    def _find_tasks(self) -> set[int]:
        """Return the newest request, the first and newest open ones of more than a few words, and open plans."""
        asks = [at for at, entry in enumerate(self.entries) if not entry.is_reply]
        is_open = [at for at in asks if not self.entries[at].is_finished and self.sizes[at] >= MIN_TASK_TOKENS]
        plans = (at for at in is_open if _items(self.entries[at].text) >= MIN_PLAN_ITEMS)
        return {*asks[-1:], *is_open[:1], *is_open[-1:], *plans}

    def _keep_whole(self, at: int, reserve: int = 0) -> None:
        cost = self.sizes[at] - self._kept_cost(at)
        if self.kept[at] is not None and cost <= self.left - reserve:
            self.left -= cost
            self.kept[at] = None

    def _keep_units(self, places: Iterable[int], level: int) -> None:
        """Keep the units of at least this level, directives and newer ones first; short messages as a whole."""
        found = [
            (-unit.level, len(unit.text) > LONG_LINE, order, at, number)
            for order, at in enumerate(places)
            for number, unit in enumerate(self.units[at])
            if unit.level >= level
        ]
        for _, _, _, at, number in sorted(found):
            if self.sizes[at] <= SHORT_TOKENS:
                self._keep_whole(at)
            else:
                self._keep_unit(at, number)

    def _keep_unit(self, at: int, number: int, reserve: int = 0) -> None:
        kept = self.kept[at]
        if kept is None or number in kept:
            return
        cost = estimate_text(self.units[at][number].text) + 1 + (0 if kept else LABEL_TOKENS + 10)
        if cost <= self.left - reserve:
            self.left -= cost
            kept.add(number)

    def _keep_outline(self, at: int, reserve: int) -> None:
        """Keep the items and headings of a task that does not fit, cutting its lines until they do."""
        kept, units = self.kept[at], self.units[at]
        if kept is None:
            return
        wanted = [
            number
            for number, unit in enumerate(units)
            if number == 0
            or number == len(units) - 1
            or unit.level
            or _ITEM.match(unit.text)
            or _HEADING.match(unit.text)
        ]
        for longest in MAX_LINE_CHARACTERS:
            cut = {number: _clip(units[number].text, longest) for number in wanted if number not in kept}
            if sum(estimate_text(text) + 1 for text in cut.values()) <= self.left - reserve:
                break
        self.units[at] = [unit._replace(text=cut.get(number, unit.text)) for number, unit in enumerate(units)]
        for number in wanted:
            self._keep_unit(at, number, reserve)

    def _cost(self, at: int, level: int) -> int:
        return sum(estimate_text(unit.text) + 1 for unit in self.units[at] if unit.level == level)

    def _kept_cost(self, at: int) -> int:
        kept = self.kept[at]
        if not kept:
            return 0
        return sum(estimate_text(self.units[at][number].text) + 1 for number in kept) + LABEL_TOKENS + 10

    def _text(self, at: int) -> str:
        kept = self.kept[at]
        if kept is None:
            return self.entries[at].text
        units = self.units[at]
        lines: dict[int, list[str]] = {}
        for number in sorted(kept):
            pieces = lines.setdefault(units[number].line, [])
            has_gap = number > 0 and number - 1 not in kept and units[number - 1].line == units[number].line
            pieces += [GAP, units[number].text] if has_gap else [units[number].text]
        return "\n".join(" ".join(pieces) for pieces in lines.values())


def _readable(text: str) -> str:
    """Return the beginning and the end of a very long text."""
    half = MAX_READ_CHARACTERS // 2
    return text if len(text) <= 2 * half else f"{text[:half]}\n{text[-half:]}"


def _clip(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest].rpartition(' ')[0] or text[:longest]}…"
