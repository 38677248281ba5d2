"""Pages fetched and web searches: the address or the query, and how much came back."""

from __future__ import annotations

from midfold.core.digest.action import Action
from midfold.core.digest.look import Look, judged
from midfold.core.digest.wording import plural

URL_KEYS = ("url", "urls", "uri", "href", "link", "address", "source")


def web(look: Look) -> Action:
    address, more = _address(look)
    query = look.text("query", "q", "searchterm", "searchquery", "keywords", "prompt")
    if address:
        method = look.text("method")
        verb = f"requested {look.say(method, 8)}" if method else "fetched"
        did = f"{verb} {look.say(address, 110)}" + (f" and {more} more" if more else "")
    else:
        did = f"searched the web for {look.quote(query, 90)}" if query else "searched the web"
    results = look.body.fields.get("results")
    detail = plural(len(results), "result") if isinstance(results, list) else look.size()
    status = look.body.fields.get("status_code", look.body.fields.get("statusCode"))
    if type(status) is int:
        detail = f"HTTP {status}, {detail}"
    return judged(look, "web", did, detail)


def _address(look: Look) -> tuple[str, int]:
    value = look.get(*URL_KEYS)
    if isinstance(value, list):
        texts = [item for item in value if isinstance(item, str)]
        return (texts[0], len(texts) - 1) if texts else ("", 0)
    return (value, 0) if isinstance(value, str) else ("", 0)
