"""What the gateway counts about itself, for /metrics. Every label has a handful of values; none is a client's text."""

from __future__ import annotations

from collections.abc import Callable

from midfold.gateway.exchange import Account
from midfold.gateway.metrics import Counter, Gauge, Histogram, Measure, page

ROUTES = "route"


class Figures:
    """An accountant that adds up."""

    def __init__(self) -> None:
        self.requests = Counter("midfold_requests_total", "Requests that are over.", ROUTES, "status", "action")
        self.refused = Counter("midfold_refused_total", "Requests refused at the door.", "status")
        self.seconds = Histogram("midfold_request_seconds", "From the request to the end of its answer.", ROUTES)
        self.first = Histogram("midfold_first_byte_seconds", "From the request to the start of its answer.", ROUTES)
        self.bytes = Counter("midfold_bytes_total", "Bytes of bodies, from and to clients.", "direction")
        self.tokens = Counter("midfold_prompt_tokens_total", "Tokens of prompts as providers reported them.", "kind")
        self.saved = Counter("midfold_tokens_not_sent_total", "Tokens that folds kept out of prompts.")
        self.unmanaged = Counter(
            "midfold_unmanaged_requests_total", "Requests not looked at because of a fault of the gateway's.", "error"
        )
        self._gauges: list[Measure] = []

    def gauge(self, name: str, told: str, read: Callable[[], float]) -> None:
        self._gauges.append(Gauge(name, told, read))

    def __call__(self, account: Account) -> None:
        self.requests.add(account.route, str(account.status), account.action)
        if account.fault:
            self.unmanaged.add(account.fault)
        self.seconds.observe(account.seconds, account.route)
        if account.first_byte:
            self.first.observe(account.first_byte, account.route)
        self.bytes.add("in", by=account.received)
        self.bytes.add("out", by=account.sent)
        self.saved.add(by=max((account.tokens_before or 0) - (account.tokens_after or 0), 0))
        if account.usage is not None:
            usage = account.usage
            read, written = usage.cache_read_tokens, usage.cache_write_tokens
            self.tokens.add("read", by=read)
            self.tokens.add("written", by=written)
            self.tokens.add("new", by=max(usage.prompt_tokens - read - written, 0))
            self.tokens.add("answered", by=usage.completion_tokens)

    def refuse(self, status: int) -> None:
        self.refused.add(str(status))

    def page(self) -> str:
        measures: list[Measure] = [self.requests, self.refused, self.seconds, self.first, self.bytes]
        return page([*measures, self.tokens, self.saved, self.unmanaged, *self._gauges])
