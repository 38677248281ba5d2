"""Endpoints of models: addresses, keys and wire formats, and the choice of the chat model and the summary model.

1. Requests go only to providers that an option or setting names. A key in the environment does not select a provider,
   except for `midfold chat` and `midfold agent`, which need one.
2. In chat and agent, `auto` uses the provider of the conversation; elsewhere it uses no model.
3. The conversation's own model is a fallback only if it has the same address.
4. Keys are read by name from the environment passed in, and never shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from midfold.config import Config
from midfold.errors import ConfigError, ModelFailed
from midfold.models import Belief, ModelOverride, look_up
from midfold.transcript import jsonio

Wire = Literal["openai", "responses", "anthropic"]
DIALECTS: dict[Wire, str] = {"openai": "openai-chat", "responses": "openai-responses", "anthropic": "anthropic"}
DEFAULT_TIMEOUT = 120.0
DEFAULT_WINDOW = 128_000
INVALID_ADDRESS = "(invalid address)"
ANTHROPIC_VERSION = "2023-06-01"
UNNAMED = "endpoint"
"""Name of a provider given only by its address."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Model at an address. The key is never shown."""

    name: str
    wire: Wire
    base_url: str
    model: str
    key: str = ""
    context_length: int = DEFAULT_WINDOW
    max_output: int | None = None
    timeout: float = DEFAULT_TIMEOUT
    extra_body: Mapping[str, Any] = {}
    reasoning_effort: str | None = None
    reuse_prefix: bool = False

    def __repr__(self) -> str:
        return f"Endpoint({self.name}, {self.wire}, {self.place}, {self.model})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name), ("place", self.place), ("model", self.model)]

    @property
    def place(self) -> str:
        """Host and port only, for errors and receipts."""
        try:
            parts = urlsplit(self.base_url)
            port = f":{parts.port}" if parts.port else ""
        except ValueError:
            return INVALID_ADDRESS
        return f"{parts.hostname}{port}" if parts.hostname else INVALID_ADDRESS

    @property
    def dialect(self) -> str:
        """Dialect of its requests and responses."""
        return DIALECTS[self.wire]

    @property
    def url(self) -> str:
        """URL for requests."""
        base = self.base_url.rstrip("/")
        if self.wire == "anthropic":
            return f"{base}/messages" if base.endswith("/v1") else f"{base}/v1/messages"
        return f"{base}/responses" if self.wire == "responses" else f"{base}/chat/completions"

    def headers(self) -> dict[str, str]:
        """Return the headers of a request; raise ModelFailed if the key or the address is unusable."""
        if not (self.key.isascii() and self.key.isprintable()):
            raise ModelFailed(
                "auth", f"the key for {self.place} contains characters that an HTTP header cannot contain"
            )
        if self.place == INVALID_ADDRESS:
            raise ModelFailed("network", f"{self.name}: {INVALID_ADDRESS}")
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if self.wire == "anthropic":
            headers["anthropic-version"] = ANTHROPIC_VERSION
        if self.key:
            bearer = {"authorization": f"Bearer {self.key}"}
            headers |= {"x-api-key": self.key} if self.wire == "anthropic" else bearer
        return headers

    @property
    def is_openai(self) -> bool:
        return self.place == "api.openai.com"

    def same_model(self, other: Endpoint) -> bool:
        return (self.base_url.rstrip("/"), self.model) == (other.base_url.rstrip("/"), other.model)


class KnownProvider(NamedTuple):
    """Well-known provider: its wire format, address and key variable, a small model and a chat model."""

    wire: Wire
    base_url: str
    key_variable: str
    small_model: str
    model: str
    base_url_variable: str = ""

    def key(self, environment: Mapping[str, str]) -> str:
        return environment.get(self.key_variable, "").strip() if self.key_variable else ""

    def address(self, environment: Mapping[str, str]) -> str:
        given = environment.get(self.base_url_variable, "").strip() if self.base_url_variable else ""
        return given or self.base_url


KNOWN: dict[str, KnownProvider] = {
    "anthropic": KnownProvider(
        "anthropic",
        "https://api.anthropic.com",
        "ANTHROPIC_API_KEY",
        "claude-haiku-4-5",
        "claude-sonnet-4-5",
        "ANTHROPIC_BASE_URL",
    ),
    "openai": KnownProvider(
        "openai", "https://api.openai.com/v1", "OPENAI_API_KEY", "gpt-5-mini", "gpt-5.1", "OPENAI_BASE_URL"
    ),
    "openrouter": KnownProvider(
        "openai",
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        "google/gemini-3-flash-preview",
        "anthropic/claude-sonnet-4.5",
    ),
    "nous": KnownProvider(
        "openai", "https://inference-api.nousresearch.com/v1", "NOUS_API_KEY", "Hermes-4-70B", "Hermes-4-405B"
    ),
}


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """Choice of the summary model. Without an endpoint, summaries are built in."""

    endpoint: Endpoint | None = None
    main: Endpoint | None = None
    why: str
    missing: bool = False
    """True if the configured model cannot be used, for example because its key is not set."""
    unused: tuple[str, ...] = ()
    """Variables with keys that would be used if the settings named a provider."""

    @property
    def description(self) -> str:
        """One-line description for users."""
        if self.endpoint is None:
            return f"built in, no LLM ({self.why})"
        return f"{self.endpoint.model} at {self.endpoint.place} ({self.why})"


def resolve(
    config: Config, environment: Mapping[str, str], model: str | None = None, talking_to: Endpoint | None = None
) -> Resolution:
    """Choose the summary model; `model` is the conversation's own model, `talking_to` its endpoint."""
    return _EndpointChoice(config, environment, model, talking_to).resolution()


def keys_present(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the set key variables of well-known providers."""
    return tuple(known.key_variable for known in KNOWN.values() if known.key(environment))


def provider_of(model: str | None) -> str | None:
    """Return the provider of a model as implied by its name, or None."""
    name = (model or "").lower()
    if "/" in name:
        return "openrouter"
    if name.startswith("claude"):
        return "anthropic"
    return "openai" if name.startswith(("gpt-", "o1", "o3", "o4", "chatgpt")) else None


class _EndpointChoice:
    """Choice of the summary model for one conversation, from its settings."""

    def __init__(
        self, config: Config, environment: Mapping[str, str], model: str | None, talking_to: Endpoint | None
    ) -> None:
        self.config = config
        self.task = config.auxiliary.compression
        self.environment = environment
        self.model = model if talking_to is None else talking_to.model
        self.talking_to = talking_to

    def resolution(self) -> Resolution:
        provider = self.task.provider
        if provider == "local":
            return Resolution(why="auxiliary.compression.provider is local")
        if self.task.base_url is not None and provider == "auto":
            endpoint = self._endpoint(UNNAMED, KnownProvider("openai", "", "", "", ""), self.task.base_url)
            return self._choose_endpoint(endpoint, "auxiliary.compression.base_url is set")
        if provider == "auto":
            return self._auto()
        if provider == "main":
            return self._as_main(self._main())
        return self._choose_provider(provider, f"auxiliary.compression.provider is {provider}")

    def _auto(self) -> Resolution:
        """Use the conversation's endpoint, or the provider of the configured model; a key alone selects nothing."""
        if self.talking_to is not None:
            endpoint = self._with_task(self.talking_to, self.task.model or self._small_model(self.talking_to))
            return self._choose_endpoint(endpoint, "auto: the conversation's own provider")
        if self.task.model is not None:
            return self._choose_by_model(self.task.model)
        if self.task.api_key_env is not None:
            why = "auto: auxiliary.compression.api_key_env names a key, but neither provider nor model is set"
            return Resolution(why=why, missing=True)
        unused = keys_present(self.environment)
        if not unused:
            return Resolution(why="auto: auxiliary.compression.provider is not set")
        are = "is set, but a key" if len(unused) == 1 else "are set, but keys"
        named = "set auxiliary.compression.provider to main or a provider's name"
        return Resolution(why=f"auto: {' and '.join(unused)} {are} alone sends nothing; {named}", unused=unused)

    def _choose_by_model(self, model: str) -> Resolution:
        """Use the provider implied by the model's name."""
        name = provider_of(model)
        if name is None:
            unknown = "its provider is unknown; set auxiliary.compression.provider"
            return Resolution(why=f"auxiliary.compression.model is {model}, but {unknown}", missing=True)
        return self._choose_provider(name, f"auxiliary.compression.model is {model}")

    def _choose_provider(self, provider: str, why: str) -> Resolution:
        known = _known_provider(self.config, provider, "auxiliary.compression")
        if not self._key(known) and known.key_variable:
            missing = f"{provider} is configured, but {self._variable(known)} is not set"
            return Resolution(why=missing, missing=True)
        return self._choose_endpoint(self._endpoint(provider, known, self.task.base_url), why)

    def _choose_endpoint(self, endpoint: Endpoint, why: str) -> Resolution:
        main = self._main()
        same_place = main is not None and main.base_url.rstrip("/") == endpoint.base_url.rstrip("/")
        return Resolution(endpoint=endpoint, main=main if same_place else None, why=why)

    def _small_model(self, endpoint: Endpoint) -> str:
        """Return the small model of a well-known provider, else the conversation's own model."""
        known = KNOWN.get(endpoint.name)
        return endpoint.model if known is None or endpoint.name in self.config.providers else known.small_model

    def _as_main(self, main: Endpoint | None) -> Resolution:
        if main is None:
            problem = f"the key for {self.model} is not set" if provider_of(self.model) else "the model is not known"
            return Resolution(why=f"auxiliary.compression.provider is main, but {problem}", missing=True)
        endpoint = self._with_task(main, self.task.model or main.model)
        return Resolution(endpoint=endpoint, why="auxiliary.compression.provider is main")

    def _main(self) -> Endpoint | None:
        """Return the endpoint of the conversation's own model, or None if its provider or key is unknown."""
        if self.talking_to is not None:
            return msgspec.structs.replace(self.talking_to, timeout=self.task.timeout)
        name = provider_of(self.model)
        if name is None or self.model is None or not KNOWN[name].key(self.environment):
            return None
        known = KNOWN[name]
        belief = _belief(self.config, self.model)
        return Endpoint(
            name=name,
            wire=known.wire,
            base_url=known.address(self.environment),
            model=self.model,
            key=known.key(self.environment),
            context_length=belief.model.context_window,
            max_output=belief.model.max_output,
            timeout=self.task.timeout,
        )

    def _endpoint(self, name: str, known: KnownProvider, base_url: str | None) -> Endpoint:
        model = self.task.model or known.small_model
        if not model:
            raise ConfigError("auxiliary.compression.model: this endpoint needs the name of a model")
        endpoint = Endpoint(
            name=name,
            wire=known.wire,
            base_url=base_url or known.address(self.environment),
            model=model,
            key=self._key(known),
        )
        return self._with_task(endpoint, model)

    def _with_task(self, endpoint: Endpoint, model: str) -> Endpoint:
        belief = _belief(self.config, model)
        return msgspec.structs.replace(
            endpoint,
            model=model,
            context_length=self.task.context_length or belief.model.context_window,
            max_output=belief.model.max_output if belief.known else None,
            timeout=self.task.timeout,
            extra_body=_object(self.task.extra_body),
            reasoning_effort=self.task.reasoning_effort,
            reuse_prefix=self._reuses_prefix(endpoint, model),
        )

    def _reuses_prefix(self, endpoint: Endpoint, model: str) -> bool:
        """Return whether to reuse the cached prefix.

        The default is yes only at the conversation's own address and key, which already received the complete
        conversation.
        """
        reuse, held = self.task.reuse_prefix, self.talking_to
        if reuse is None:
            reuse = held is not None and (held.base_url, held.key) == (endpoint.base_url, endpoint.key)
        return reuse and model == self.model

    def _variable(self, known: KnownProvider) -> str:
        return self.task.api_key_env or known.key_variable

    def _key(self, known: KnownProvider) -> str:
        return self.environment.get(self._variable(known), "").strip() if self._variable(known) else ""


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = jsonio.decode(text)
    except jsonio.NotJSON:
        value = None
    if not isinstance(value, dict):
        raise ConfigError("auxiliary.compression.extra_body: expected a mapping, or a JSON object as text")
    return value


def endpoint_for(
    config: Config,
    environment: Mapping[str, str],
    *,
    model: str | None = None,
    provider: str | None = None,
    base_url: str | None = None,
    wire: Wire | None = None,
) -> Endpoint:
    """Return the endpoint an agent talks to; raise ConfigError with the setting to add if it is not determined."""
    settings = config.agent
    name, who = model or settings.model, provider or settings.provider
    if base_url is not None and who == "auto":
        who, known = UNNAMED, KnownProvider(wire or "openai", base_url, "", "", "")
    else:
        who = _provider_serving(name, environment) if who == "auto" else who
        known = _known_provider(config, who, "agent")
    name = name or known.model
    if not name:
        raise ConfigError(f"no model given: pass --model, or set agent.model or providers.{who}.model")
    key = known.key(environment)
    if known.key_variable and not key:
        raise ConfigError(f"{who} needs a key: set the environment variable {known.key_variable}")
    belief = _belief(config, name)
    return Endpoint(
        name=who,
        wire=wire or known.wire,
        base_url=base_url or known.address(environment),
        model=name,
        key=key,
        context_length=belief.model.context_window,
        max_output=belief.model.max_output if belief.known else None,
        timeout=settings.timeout,
    )


def secret_variables(config: Config) -> frozenset[str]:
    """Return the environment variables that hold keys; the agent's commands do not receive them."""
    named = [section.api_key_env for section in config.providers.values()]
    named += [row.api_key_env for row in config.upstreams.values()]
    named += [config.auxiliary.compression.api_key_env, config.gateway.api_key_env]
    named += [known.key_variable for known in KNOWN.values()]
    return frozenset(filter(None, named))


def _provider_serving(model: str | None, environment: Mapping[str, str]) -> str:
    """Return the provider implied by the model's name; without a model, the first provider whose key is set."""
    if model is not None:
        own = provider_of(model)
        if own is None:
            raise ConfigError(
                f"the provider of {model} is unknown: set agent.provider to a providers section, or pass --base-url"
            )
        return own
    present = [name for name, known in KNOWN.items() if known.key(environment)]
    if not present:
        names = ", ".join(known.key_variable for known in KNOWN.values())
        raise ConfigError(f"no model configured: set one of {names}, or pass --base-url URL --model NAME")
    return present[0]


def _known_provider(config: Config, provider: str, section_name: str) -> KnownProvider:
    """Return the provider from its `providers` section, which may override a well-known one."""
    section, known = config.providers.get(provider), KNOWN.get(provider)
    if section is None:
        if known is None:
            raise ConfigError(f"{section_name}.provider: there is no section providers.{provider}")
        return known
    base = section.base_url or (known.base_url if known else KNOWN[section.wire].base_url)
    variable = section.api_key_env or (known.key_variable if known else "")
    small, large = (known.small_model, known.model) if known else ("", "")
    return KnownProvider(section.wire, base, variable, section.model or small, section.model or large)


def _belief(config: Config, model: str) -> Belief:
    overrides = {name: ModelOverride(**msgspec.structs.asdict(row)) for name, row in config.models.items()}
    return look_up(model, overrides)
