"""Options, setup and screen output shared by `chat` and `agent`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from rich.console import Console
from rich.text import Text

from midfold.agent import Agent, AgentAssembly, events
from midfold.agent.shapes import caching_provider
from midfold.agent.tools.shell import hide_own_environment
from midfold.cache.breakpoints import SIGN, status_line
from midfold.cli.fold_picture import BASES, outcome_words
from midfold.cli.options import engine_settings, full_name, with_base_url
from midfold.cli.terminal import bar, has_unicode, make_table, make_text, notice, visible
from midfold.compaction.budget import pressure_text
from midfold.compaction.receipt import Receipt
from midfold.compaction.redact import redact
from midfold.compaction.render_results import render_result, visible_lines
from midfold.config import Config
from midfold.model import local_summarizer
from midfold.model.endpoint import UNNAMED, Endpoint, Wire, endpoint_for
from midfold.pages.formatting import money, plural
from midfold.session.conversation import ChatPartner
from midfold.session.session import memory_of
from midfold.transcript.breakdown import by_kind, context_breakdown, fit_sizes
from midfold.transcript.message import Message, ToolCall, ToolResult
from midfold.transcript.message import Text as TextPart
from midfold.transcript.wrappers import user_words

if TYPE_CHECKING:
    from midfold.pages.statistics import SessionStatistics

OPTIONS = (
    click.option(
        "--model", metavar="NAME", help="Model; default: agent.model, else chosen by the API keys that are set."
    ),
    click.option("--provider", metavar="NAME", help="Provider of the model; default: agent.provider."),
    with_base_url("OpenAI's or Anthropic's API"),
    click.option("--wire", type=click.Choice(["openai", "anthropic"]), help="API of that server; default: openai."),
    click.option(
        "--context-length",
        type=click.IntRange(min=1_000),
        metavar="N",
        help="Context window in tokens; default: the model's.",
    ),
    click.option(
        "--resume",
        metavar="ID",
        help="Resume this session: its id or a prefix, or `last` for the newest.",
    ),
    click.option("--folder", metavar="DIR", default=".", help="Working directory; default: the current one."),
    click.option("--local", is_flag=True, help="Use built-in summaries without an LLM, regardless of the settings."),
    click.option(
        "--store", metavar="URL", help="Store of the sessions; default: store.url, else a file in your home directory."
    ),
    click.option("--config", metavar="FILE", help="Read settings from this file."),
)
MAX_SHOWN_LINES = 4
MAX_LINE_CHARS = 120
MAX_SHOWN_CHARS = 10_000
MAX_RESULT_CHARS = 4_000
BAR = 20
CONTEXT_BAR = 60
GOOD = ("compacted", "pruned")


class Talk(NamedTuple):
    """Everything needed to start a conversation."""

    workshop: AgentAssembly
    endpoint: Endpoint
    resume: str | None
    config: Config

    def other(self, model: str, provider: str | None = None) -> Endpoint:
        """Return the endpoint of another model, at the same base URL if one was given and `provider` is None."""
        if self.endpoint.name == UNNAMED and provider is None:
            return msgspec.structs.replace(self.endpoint, model=model)
        return endpoint_for(self.config, os.environ, model=model, provider=provider)


class ModelOptions(NamedTuple):
    """Model options of the command line."""

    model: str | None
    provider: str | None
    base_url: str | None
    wire: Wire | None
    window: int | None

    def with_partner(self, before: ChatPartner | None) -> ModelOptions:
        """Fill missing options from the session's last model.

        Another provider or base URL starts from scratch; another model keeps the base URL, but not the window.
        """
        if before is None or self.provider is not None or self.base_url is not None:
            return self
        if self.model not in (None, before.model):
            return self._replace(base_url=before.base_url, wire=self.wire or before.wire)
        return ModelOptions(
            model=before.model,
            provider=None if before.provider == UNNAMED else before.provider,
            base_url=before.base_url,
            wire=self.wire or before.wire,
            window=self.window or before.window,
        )

    def endpoint(self, config: Config) -> Endpoint:
        return endpoint_for(
            config, os.environ, model=self.model, provider=self.provider, base_url=self.base_url, wire=self.wire
        )


def with_talk(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options; the command receives a `Talk`."""

    @wraps(command)
    def run(
        model: str | None,
        provider: str | None,
        base_url: str | None,
        wire: Any,
        context_length: int | None,
        resume: str | None,
        folder: str,
        local: bool,
        store: str | None,
        config: str | None,
        **rest: Any,
    ) -> Any:
        hide_own_environment()
        known = engine_settings(config)
        chosen_options = ModelOptions(
            model=model, provider=provider, base_url=base_url, wire=wire, window=context_length
        )
        if resume is None:
            chosen_options.endpoint(known)
        summarizer = local_summarizer if local else None
        with AgentAssembly(folder, known, os.environ, store=store, summarizer=summarizer) as workshop:
            for text in workshop.engine_tools.notices:
                notice(text)
            name = None if resume is None else full_name(workshop.sessions, resume)
            chosen = chosen_options.with_partner(workshop.partner_of(name) if name is not None else None)
            workshop.window = chosen.window
            return command(Talk(workshop, chosen.endpoint(known), name, known), **rest)

    for option in reversed(OPTIONS):
        run = option(run)
    return run


class Screen:
    """Printer of agent events. `out` may be standard error, for scripts that want only the answer."""

    is_chat = True
    """Whether a user can type commands."""

    def __init__(self, out: Console) -> None:
        self.out = out
        self._in_text = False
        self._interrupted = False
        self._unicode = has_unicode(out)
        self._calls: dict[str, ToolCall] = {}

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Said(text=text):
                self._say_words(text)
            case events.Calling(id=id_, name=name, about=about, arguments=arguments):
                self._calls[id_] = ToolCall(id=id_, name=name, arguments=arguments)
                self._line(
                    Text(self._sign("●", "*"), style="yellow"),
                    Text(f" {visible(name)} ", style="bold"),
                    _cut_line(about),
                )
            case events.Called():
                self._show_result(event)
            case events.Folded():
                self._show_fold(event)
            case events.EngineFault(why=why):
                self._line(Text(visible(why), style="red"))
            case events.Preparing():
                self._line(
                    Text(f"{self._sign('◇', '-')} preparing a compaction in the background", style="bright_black")
                )
            case events.Retrying(why=why, seconds=seconds):
                self._line(Text(f"{visible(why)}; retrying in {seconds:g} s", style="yellow"))
            case events.Overflowed(limit=limit):
                named = f" The provider's limit is {limit:,} tokens." if limit else ""
                self._line(Text(f"The request exceeds the model's window.{named}", style="yellow"))
            case events.Finished(how=how, why=why):
                self._show_end(how, why)

    def caching(self, config: Config, endpoint: Endpoint) -> None:
        """Print the prompt-caching status line."""
        settings, provider = config.prompt_caching, caching_provider(endpoint)
        provider = endpoint.place if provider == UNNAMED else provider
        line = status_line(provider, endpoint.model, settings.cache_ttl, settings.enabled, endpoint.dialect)
        self.say(line if self._unicode else line.removeprefix(SIGN))

    def _sign(self, pretty: str, plain: str) -> str:
        return pretty if self._unicode else plain

    def _say_words(self, text: str) -> None:
        """Print model text with control characters made visible, so that it cannot control the terminal."""
        self._in_text = not text.endswith("\n")
        self.out.print(Text(visible(text, lines=True)), end="", soft_wrap=True)

    def _line(self, *pieces: Text | str) -> None:
        """Print a line, ending unfinished model text first."""
        self._end_text()
        self.out.print(Text.assemble(*pieces), soft_wrap=True)

    def _end_text(self) -> None:
        if self._in_text:
            self.out.print()
            self._in_text = False

    def _show_result(self, event: events.Called) -> None:
        call = self._calls.pop(event.id, ToolCall(id=event.id, name=event.name, arguments=""))
        result = ToolResult(call_id=event.id, parts=(TextPart(event.text),), is_error=event.is_error)
        rendered = visible_lines(render_result(result, call, max_chars=MAX_RESULT_CHARS))
        lines = rendered or redact(event.text[:MAX_RESULT_CHARS]).splitlines()
        style = "red" if event.is_error else "bright_black"
        for number, line in enumerate(lines[:MAX_SHOWN_LINES]):
            corner = self._sign("⎿ ", "| ") if not number else "  "
            self._line(Text(f"  {corner}{visible(line.expandtabs())[:MAX_LINE_CHARS]}", style=style))
        more = len(rendered or event.text.splitlines()) - MAX_SHOWN_LINES
        if more > 0:
            took = f", {event.seconds:.1f} s" if event.seconds >= 0.1 else ""
            self._line(Text(f"    and {more:,} more line{'' if more == 1 else 's'}{took}", style=style))

    def _show_fold(self, event: events.Folded) -> None:
        if event.trigger == "asked":
            return
        if event.status not in GOOD:
            style = "red" if event.status == "aborted" else "bright_black"
            self._line(Text(f"not compacted: {visible(event.reason)}", style=style))
            return
        how = "prepared in advance" if event.prepared else f"summary: {event.summary or 'none needed'}"
        self._line(
            Text(f"{self._sign('◆', '#')} compacted ", style="magenta"),
            f"{event.old_tokens:,} {self._sign('→', '->')} {event.new_tokens:,} tokens, "
            f"{event.old_messages:,} {self._sign('→', '->')} {event.new_messages:,} messages",
            Text(f"  ({how}{'; revert with /undo' if self.is_chat else ''})", style="bright_black"),
        )

    def _show_end(self, how: str, why: str) -> None:
        self._end_text()
        if how == "interrupted":
            self._interrupted = True
            hint = "  (leave with /quit or Ctrl-D)" if self.is_chat else ""
            self._line(Text("interrupted", style="yellow"), Text(hint, style="bright_black"))
        elif how in ("failed", "steps"):
            self._line(make_text(why, "red"))

    def say_stopped(self) -> None:
        """Print that Ctrl-C stopped a command; an interrupted turn has already printed it."""
        if not self._interrupted:
            self._line(Text("stopped", style="yellow"))
        self._interrupted = False

    def status(self, agent: Agent) -> None:
        """Show model, window, pressure, cache and compactions in as few lines as the terminal allows."""
        size, setup = agent.room.size, agent.session.setup
        share = size.tokens / max(setup.window, 1)
        colour = "red" if share >= 0.85 else "yellow" if size.tokens >= setup.budget.threshold_tokens else "green"
        line = Text.assemble(
            make_text(agent.model.endpoint.model, "bold"),
            "  ",
            Text(self._fill_bar(share, BAR), style=colour),
            f" {size.tokens:,} of {setup.window:,} ({share:.0%})",
        )
        for more in (_pressure(agent), self._cache(agent), _compactions(agent)):
            if line.cell_len + 2 + len(more) > self.out.width:
                self._line(line)
                line = Text()
            line.append(f"  {more}", style="bright_black")
        self._line(line)

    def _fill_bar(self, share: float, width: int) -> str:
        full = bar(share, width, ascii_only=not self._unicode)
        return full + ("░" if self._unicode else ".") * (width - len(full))

    def _cache(self, agent: Agent) -> str:
        used = agent.last
        if used is None or not used.prompt_tokens:
            return "cache: no data yet"
        return f"cache: {used.cache_read_tokens / used.prompt_tokens:.0%} of the last prompt"

    def context(self, agent: Agent) -> None:
        """Show token use as a coloured bar over the window, and as tables."""
        from midfold.cli.inspect import COLOURS, context_table, kinds_table
        from midfold.transcript.document import tool_of

        session, setup = agent.session, agent.session.setup
        view, size = session.view(), agent.room.size
        tools = tuple(tool_of(tool) for tool in setup.tools)
        kinds = fit_sizes(by_kind(view.transcript, setup.meter, system=view.prompt, tools=tools), size.tokens)
        strip, so_far = Text(), 0
        for kind, tokens in kinds.items():
            so_far += tokens
            cells = round(min(so_far / setup.window, 1) * CONTEXT_BAR) - len(strip)
            strip.append(self._sign("█", "#") * cells, style=COLOURS.get(kind, "white"))
        free_cells = max(CONTEXT_BAR - len(strip), 0)
        threshold = max(round(setup.budget.threshold_tokens / setup.window * CONTEXT_BAR) - len(strip), 0)
        strip.append(self._sign("░", ".") * min(threshold, free_cells), style="bright_black")
        strip.append(self._sign("│", "|") if threshold < free_cells else "", style="yellow")
        strip.append(self._sign("░", ".") * max(free_cells - threshold - 1, 0), style="bright_black")
        self._line(strip)
        self._line(
            Text(f"{size.tokens:,}", style="bold"),
            f" of {setup.window:,} tokens ({BASES[size.basis]}), {_pressure(agent)}. ",
            f"The model sees {len(view):,} of {len(session.history()) if session.info else 0:,} messages.",
        )
        self.out.print()
        kinds_table(self.out, kinds)
        self.out.print()
        context = context_breakdown(
            view.transcript,
            setup.meter,
            system=view.prompt,
            tools=tools,
            measured_prompt_tokens=size.tokens,
            context_max_tokens=setup.window,
            reserved_tokens=setup.budget.output_reservation,
        )
        context_table(self.out, context.shares, measured=size.basis != "estimated")

    def usage(self, agent: Agent, known: SessionStatistics) -> None:
        """Show what the session has used, what it cost, and what each compaction saved."""
        used, saved = known.facts.usage, known.facts.saved
        table = make_table("Usage", ">tokens")
        table.add_row(f"in, in {plural(used.requests, 'request')}", f"{used.input_tokens:,}")
        table.add_row("  read from the cache", f"{used.cache_read_tokens:,}")
        table.add_row("  written to the cache", f"{used.cache_write_tokens:,}")
        table.add_row("out", f"{used.output_tokens:,}")
        self.out.print(table)
        unknown = f"unknown: no price for {known.facts.model or 'this model'}" if used.requests else "nothing yet"
        self.say(f"cost: {money(used.cost) if used.cost is not None else unknown}")
        self.say(_pressure(agent))
        self.say(_compactions(agent))
        if known.records:
            self._show_savings(known)
            net = f"; {money(saved.net)} saved after the cost of summaries" if saved.net is not None else ""
            self.say(f"total: {saved.tokens_not_sent:,} tokens not sent{net}")

    def _show_savings(self, known: SessionStatistics) -> None:
        table = make_table(">#", ">tokens before", ">after", ">saved per request", ">requests since", "summary", "")
        for record in known.records:
            receipt = record.receipt
            sizes = (receipt.old_tokens, receipt.new_tokens, receipt.old_tokens - receipt.new_tokens)
            since = sum(turn.compaction == record.seq for turn in known.turns)
            undone = "undone" if record.undone is not None else ""
            table.add_row(str(record.seq), *(f"{size:,}" for size in (*sizes, since)), receipt.summary.source, undone)
        self.out.print(table)

    def receipt(self, receipt: Receipt, *, preview: bool = False) -> None:
        """Print the result of a compaction or of a preview."""
        colour = "green" if receipt.status in GOOD else "yellow"
        what, why = outcome_words(receipt, preview=preview)
        self._line(Text(what, style=f"bold {colour}"), f": {visible(why)}")
        arrow = self._sign("→", "->")
        rows: list[tuple[str, Any]] = [
            ("messages", f"{receipt.old_messages:,} {arrow} {receipt.new_messages:,}"),
            ("tokens", f"{receipt.old_tokens:,} {arrow} {receipt.new_tokens:,} ({BASES[receipt.token_basis]})"),
        ]
        if receipt.boundary is not None and receipt.status in GOOD:
            start, end = receipt.boundary.start, receipt.boundary.end
            which = f"messages {start:,} to {max(end - 1, start):,}"
            rows.append(("to fold" if preview else "folded", which))
        if receipt.fold and not preview:
            rows.append(("handle", receipt.fold))
        for name, value in rows:
            self._line(Text(f"  {name:9}", style="bright_black"), str(value))
        for line in (*receipt.notices, *receipt.impossible):
            self._line(Text(f"  {visible(line)}", style="yellow"))

    def whole(self, about: str) -> None:
        """Print a call in full if its one-line form was truncated, so that users see everything they agree to."""
        if _cut_line(about) == about:
            return
        for line in about[:MAX_SHOWN_CHARS].splitlines():
            self._line(Text(f"    {visible(redact(line).expandtabs())}", style="yellow"))
        if len(about) > MAX_SHOWN_CHARS:
            self._line(Text(f"    and {len(about) - MAX_SHOWN_CHARS:,} more characters, not shown", style="red"))

    def words(self, message: Message) -> None:
        """Print an earlier message, truncated if long."""
        text = redact(user_words(message) or message.text).strip()
        shown = text if len(text) <= MAX_RESULT_CHARS else f"{text[:MAX_RESULT_CHARS]}…"
        prompt = Text("> ", style="bright_black") if message.role == "user" else Text()
        self._line(prompt + Text(visible(shown, lines=True), style="default"))

    def say(self, text: str, style: str = "") -> None:
        self._line(make_text(text, style))


def _cut_line(text: str) -> str:
    line = " ".join(redact(text).split())
    return visible(line if len(line) <= MAX_LINE_CHARS else f"{line[: MAX_LINE_CHARS - 1]}…")


def _pressure(agent: Agent) -> str:
    """Return how close the next compaction is."""
    setup = agent.session.setup
    if not setup.config.compression.enabled:
        return "compaction is off"
    return pressure_text(agent.room.size.tokens, setup.budget.threshold_tokens)


def _compactions(agent: Agent) -> str:
    """Return the number of compactions that are not undone."""
    info = agent.session.info
    made = agent.session.receipts() if info is not None else []
    count = sum(record.undone is None for record in made)
    undone = "; last one undone, compact again with /compress" if info is not None and memory_of(info).undone else ""
    return f"{count} compaction{'' if count == 1 else 's'}{undone}"
