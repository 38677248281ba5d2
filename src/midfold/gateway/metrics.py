"""Metrics, readiness and request log of the gateway.

Usage:

    operations = Operations(config, sessions)
    app = create_app(config, sessions=sessions, extra_routes=operations.routes())
    uvicorn.run(operations.around(app), http=PatientProtocol)
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from midfold.compaction.receipt import RecallCost
from midfold.config import Config
from midfold.errors import ConfigError, MidfoldError, StoreUnavailable
from midfold.gateway.admission import Admission, AdmissionLimits, GatewayKeys
from midfold.gateway.browsers import LOOPBACK, Browsers
from midfold.gateway.exchange import RequestAccount
from midfold.gateway.server import Log, LogEntry, now, to

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from midfold.gateway.server import GatewayApplication
    from midfold.session.sessions import Sessions


# Counters, gauges and histograms in the Prometheus text format.
#
# Labels are few and their values known in advance: none contains client data.


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[str, ...]


class Counter:
    """Monotonic counter by label values."""

    kind = "counter"

    def __init__(self, name: str, help_text: str, *labels: str) -> None:
        self.name, self.help_text, self.labels = name, help_text, labels
        self._values: dict[Labels, float] = {}

    def add(self, *values: str, by: float = 1.0) -> None:
        self._values[values] = self._values.get(values, 0.0) + by

    def value(self, *values: str) -> float:
        return self._values.get(values, 0.0)

    def values(self) -> dict[Labels, float]:
        return dict(self._values)

    def lines(self) -> Iterator[str]:
        for values in sorted(self._values):
            yield f"{self.name}{_labels(self.labels, values)} {_number(self._values[values])}"


class MetricGauge:
    """Gauge that is read when the page is rendered."""

    kind = "gauge"

    def __init__(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        self.name, self.help_text, self._read = name, help_text, read

    def lines(self) -> Iterator[str]:
        yield f"{self.name} {_number(self._read())}"


class Histogram:
    """Histogram with cumulative buckets by label values."""

    kind = "histogram"

    def __init__(self, name: str, help_text: str, *labels: str, bounds: Sequence[float] = SECONDS) -> None:
        self.name, self.help_text, self.labels, self.bounds = name, help_text, labels, tuple(bounds)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, measured: float, *values: str) -> None:
        counts = self._counts.setdefault(values, [0] * (len(self.bounds) + 1))
        counts[bisect_left(self.bounds, measured)] += 1
        self._sums[values] = self._sums.get(values, 0.0) + measured

    def lines(self) -> Iterator[str]:
        for values in sorted(self._counts):
            below = 0
            for bound, count in zip((*self.bounds, None), self._counts[values], strict=True):
                below += count
                edge = "+Inf" if bound is None else _number(bound)
                yield f"{self.name}_bucket{_labels((*self.labels, 'le'), (*values, edge))} {below}"
            shown = _labels(self.labels, values)
            yield f"{self.name}_sum{shown} {_number(self._sums[values])}"
            yield f"{self.name}_count{shown} {below}"


Measure = Counter | MetricGauge | Histogram


def page(measures: Sequence[Measure]) -> str:
    """Render all metrics with their HELP and TYPE lines."""
    lines: list[str] = []
    for measure in measures:
        lines += [f"# HELP {measure.name} {_escape(measure.help_text)}", f"# TYPE {measure.name} {measure.kind}"]
        lines += measure.lines()
    return "\n".join(lines) + "\n"


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{_escape(value, quoted=True)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escape(text: str, *, quoted: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quoted else escaped


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


# Metrics of the gateway for /metrics. Every label has a handful of values; none contains client data.


ROUTES = "route"


class Metrics:
    """Accountant that aggregates requests into metrics."""

    def __init__(self) -> None:
        self.requests = Counter("midfold_requests_total", "Finished requests.", ROUTES, "status", "action")
        self.refused = Counter("midfold_refused_total", "Requests refused at admission.", "status")
        self.seconds = Histogram(
            "midfold_request_seconds", "Seconds from a request to the end of its response.", ROUTES
        )
        self.first = Histogram(
            "midfold_first_byte_seconds", "Seconds from a request to the start of its response.", ROUTES
        )
        self.bytes = Counter("midfold_bytes_total", "Bytes of bodies received from and sent to clients.", "direction")
        self.tokens = Counter("midfold_prompt_tokens_total", "Tokens reported by providers.", "kind")
        self.hidden_rounds = Counter("midfold_hidden_rounds_total", "Hidden rounds of recall tool calls.")
        self.hidden_tokens = Counter("midfold_hidden_tokens_total", "Tokens of hidden rounds.", "kind")
        self.saved = Counter("midfold_tokens_not_sent_total", "Prompt tokens saved by folds.")
        self.unmanaged = Counter(
            "midfold_unmanaged_requests_total", "Requests passed unmanaged because of a gateway fault.", "error"
        )
        self.fold_wait = Histogram(
            "midfold_fold_wait_seconds", "Seconds that folded requests waited for a summary model.", "readiness"
        )
        self.omitted = Counter("midfold_omitted_texts_total", "Texts missing from summaries because of errors.", "what")
        self._gauges: list[Measure] = []

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        self._gauges.append(MetricGauge(name, help_text, read))

    def __call__(self, account: RequestAccount) -> None:
        self.requests.add(account.route, str(account.status), account.action)
        if account.fault:
            self.unmanaged.add(account.fault)
        self.seconds.observe(account.seconds, account.route)
        if account.first_byte:
            self.first.observe(account.first_byte, account.route)
        self.bytes.add("in", by=account.received)
        self.bytes.add("out", by=account.sent)
        self.saved.add(by=max((account.tokens_before or 0) - (account.tokens_after or 0), 0))
        if account.readiness or account.fold_wait:
            self.fold_wait.observe(account.fold_wait, account.readiness or "none")
        for omission in account.omitted:
            self.omitted.add(omission.what, by=omission.count)
        self._count_hidden(account.hidden)
        if account.usage is not None:
            usage = account.usage
            read, written = usage.cache_read_tokens, usage.cache_write_tokens
            self.tokens.add("read", by=read)
            self.tokens.add("written", by=written)
            self.tokens.add("new", by=max(usage.prompt_tokens - read - written, 0))
            self.tokens.add("answered", by=usage.completion_tokens)

    def _count_hidden(self, hidden: RecallCost) -> None:
        """Count hidden recall rounds, both in the prompt totals and separately."""
        if not hidden.rounds:
            return
        self.hidden_rounds.add(by=hidden.rounds)
        new = max(hidden.prompt_tokens - hidden.cached_tokens, 0)
        for kind, count in (("read", hidden.cached_tokens), ("new", new), ("answered", hidden.output_tokens)):
            self.tokens.add(kind, by=count)
            self.hidden_tokens.add(kind, by=count)

    def refuse(self, status: int) -> None:
        self.refused.add(str(status))

    def page(self) -> str:
        measures: list[Measure] = [self.requests, self.refused, self.seconds, self.first, self.bytes]
        recall: list[Measure] = [self.hidden_rounds, self.hidden_tokens]
        faults: list[Measure] = [self.unmanaged, self.omitted]
        return page([*measures, self.tokens, *recall, self.saved, self.fold_wait, *faults, *self._gauges])


READY_WITHIN = 3.0
"""Seconds that the store may take to answer a readiness check."""
FAULT_SECONDS = 30.0
"""Seconds for which the gateway reports not ready after the store failed a request.

After that it reports ready again: a gateway without requests would never notice that its disk has space again.
"""


def check_access(config: Config) -> None:
    """Refuse to bind a public address without gateway keys."""
    host = config.gateway.host
    if host not in LOOPBACK and host != "::1" and not config.keys:
        raise ConfigError(
            f"gateway.host {host} is reachable from other machines, and no gateway keys are configured; "
            "create one with `midfold keys new NAME`"
        )


class Operations:
    """Admission, metrics, request log and readiness of one gateway."""

    def __init__(self, config: Config, sessions: Sessions | None, *, log: Log | None = None) -> None:
        self.config, self.sessions = config, sessions
        self.figures = Metrics()
        self._log = log or (to() if config.gateway.log == "requests" else None)
        self._faulty_until = 0.0

    def routes(self) -> list[Route]:
        from starlette.routing import Route

        return [Route("/metrics", self._metrics), Route("/readyz", self._ready)]

    def around(self, app: GatewayApplication) -> Admission:
        """Wrap the application with admission, metrics and logging."""
        settings = self.config.gateway
        limits = AdmissionLimits(
            body_bytes=settings.largest_body, body_seconds=settings.body_seconds, total_bytes=settings.largest_total
        )
        app.gateway.accountants += [self.figures, self._note_fault]
        if self._log is not None:
            app.gateway.accountants.append(self.write)
        keys = GatewayKeys({name: key.hash for name, key in self.config.keys.items()})
        admission = Admission(app, keys, limits, self.figures.refuse, Browsers.of(self.config), app.gateway.held)
        self.figures.gauge("midfold_held_bytes", "Bytes held for unfinished requests.", lambda: admission.held.total)
        if (ahead := app.gateway.preparer.ahead) is not None:
            self.figures.gauge("midfold_folds_in_preparation", "Folds being prepared in advance.", lambda: ahead.count)
        if importlib.util.find_spec("resource") is not None:
            self.figures.gauge("midfold_resident_bytes", "Peak resident memory of the process.", _memory)
        return admission

    def _note_fault(self, account: RequestAccount) -> None:
        """Remember that the store failed a request; reads may work while writes fail."""
        if account.fault == StoreUnavailable.__name__:
            self._faulty_until = time.monotonic() + FAULT_SECONDS

    def write(self, account: RequestAccount) -> None:
        """Log a finished request."""
        assert self._log is not None
        self._log(
            LogEntry(
                at=now(),
                owner=account.owner,
                method=account.method if account.method.isalpha() else "",
                route=account.route,
                status=account.status,
                milliseconds=round(account.seconds * 1_000, 2),
                first_byte=round(account.first_byte * 1_000, 2),
                action=account.action,
                receipt=account.receipt or "",
                tokens_before=account.tokens_before or 0,
                tokens_after=account.tokens_after or 0,
                bytes_in=account.received,
                bytes_out=account.sent,
                reason=account.reason,
            )
        )

    async def _metrics(self, request: Request) -> Response:
        from starlette.responses import Response

        return Response(self.figures.page(), headers={"content-type": CONTENT_TYPE})

    async def _ready(self, request: Request) -> Response:
        """Answer the readiness check: 200, or 503 with the reason.

        Includes the number of requests passed unmanaged because of gateway faults, by kind.
        """
        from starlette.responses import JSONResponse

        trouble = await self._trouble()
        status_body: dict[str, object] = {"status": "not ready" if trouble else "ready", "store": trouble or "ok"}
        unmanaged = {labels[0]: int(count) for labels, count in self.figures.unmanaged.values().items()}
        return JSONResponse(status_body | ({"unmanaged": unmanaged} if unmanaged else {}), 503 if trouble else 200)

    async def _trouble(self) -> str:
        if self.sessions is None:
            return ""
        store = self.sessions.store
        try:
            async with asyncio.timeout(READY_WITHIN):
                await asyncio.to_thread(store.sessions, 1)
        except TimeoutError:
            return f"no response within {READY_WITHIN:g} seconds"
        except StoreUnavailable as error:
            # Text after a colon is the database server's message, which may name hosts and users.
            return str(error).removeprefix(f"{store.where}: ").partition(": ")[0]
        except MidfoldError as error:
            return type(error).__name__
        if time.monotonic() < self._faulty_until:
            return f"the store failed less than {FAULT_SECONDS:g} seconds ago; a request was passed unmanaged"
        return ""


def _memory() -> float:
    import resource  # not available on Windows

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1_024
