"""Which model writes the summaries: whom the settings name, with the reason.

Rules of this file:
1. Nothing is sent anywhere that the settings do not name. A key in the environment opens a door that is named; it
   names none.
2. `auto` asks whoever the conversation is talking to already, in chat and agent; elsewhere it asks nobody.
3. The conversation's own model stands in for another one only where it is reached at the same address.
4. Keys are read by name from the environment that is passed in, and are never shown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from midfold.config import Config
from midfold.errors import ConfigError, SummaryFailed
from midfold.fold.request import SummaryAnswer, SummaryAsk
from midfold.models import Belief, look_up
from midfold.summarize import Summarizer, local_summarizer
from midfold.summarize.endpoint import Endpoint, Wire
from midfold.transcript import jsonio


class Known(NamedTuple):
    """A provider everybody knows: where it is, how it is spoken to, and a small model of it."""

    wire: Wire
    base_url: str
    key_variable: str
    small_model: str
    base_url_variable: str = ""


KNOWN: dict[str, Known] = {
    "anthropic": Known(
        "anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY", "claude-haiku-4-5", "ANTHROPIC_BASE_URL"
    ),
    "openai": Known("openai", "https://api.openai.com/v1", "OPENAI_API_KEY", "gpt-5-mini", "OPENAI_BASE_URL"),
    "openrouter": Known(
        "openai", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "google/gemini-3-flash-preview"
    ),
    "nous": Known("openai", "https://inference-api.nousresearch.com/v1", "NOUS_API_KEY", "Hermes-4-70B"),
}


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """Who summarises. Without an endpoint the summary is made locally."""

    endpoint: Endpoint | None = None
    main: Endpoint | None = None
    why: str
    missing: bool = False
    """Whether a model is configured that cannot be asked: its key is not there."""
    unused: tuple[str, ...] = ()
    """Variables whose keys would have been used, had the settings named a provider."""

    @property
    def told(self) -> str:
        """One line for people."""
        if self.endpoint is None:
            return f"local, without a model ({self.why})"
        return f"{self.endpoint.model} at {self.endpoint.place} ({self.why})"


def resolve(
    config: Config, environment: Mapping[str, str], model: str | None = None, talking_to: Endpoint | None = None
) -> Resolution:
    """The model that the settings choose. `model` is the conversation's own, `talking_to` where it is being held."""
    return _Choice(config, environment, model, talking_to).resolution()


def keys_present(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The variables of the known providers' keys that are set."""
    return tuple(known.key_variable for known in KNOWN.values() if environment.get(known.key_variable, "").strip())


def summarizer_for(config: Config | None, model: str | None, talking_to: Endpoint | None = None) -> Summarizer:
    """Whoever the settings choose; without settings nobody is asked, and the summary is made locally."""
    if config is None:
        return local_summarizer
    found = resolve(config, os.environ, model, talking_to)
    if found.endpoint is None:
        return _nobody if found.missing else local_summarizer
    from midfold.summarize.client import ModelSummarizer

    return ModelSummarizer(found.endpoint, found.main)


def _nobody(ask: SummaryAsk) -> SummaryAnswer:
    raise SummaryFailed("no_provider")


def provider_of(model: str | None) -> str | None:
    """Who serves a model of this name, as far as its name tells."""
    name = (model or "").lower()
    if "/" in name:
        return "openrouter"
    if name.startswith("claude"):
        return "anthropic"
    return "openai" if name.startswith(("gpt-", "o1", "o3", "o4", "chatgpt")) else None


class _Choice:
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
            endpoint = self._endpoint("endpoint", Known("openai", "", "", ""), self.task.base_url)
            return self._asked(endpoint, "auxiliary.compression.base_url is set")
        if provider == "auto":
            return self._auto()
        if provider == "main":
            return self._as_main(self._main())
        return self._served_by(provider, self._named(provider), f"auxiliary.compression.provider is {provider}")

    def _auto(self) -> Resolution:
        """Whoever is talked to, or who serves the model that the settings name; a key alone means nobody."""
        if self.talking_to is not None:
            endpoint = self._with_task(self.talking_to, self.task.model or self._small_model(self.talking_to))
            return self._asked(endpoint, "auto: the conversation is held there")
        if self.task.model is not None:
            return self._serving(self.task.model)
        if self.task.api_key_env is not None:
            why = "auto: auxiliary.compression.api_key_env names a key, but neither provider nor model is named"
            return Resolution(why=why, missing=True)
        unused = keys_present(self.environment)
        if not unused:
            return Resolution(why="auto asks nobody here")
        are = "is set, but a key" if len(unused) == 1 else "are set, but keys"
        named = "auxiliary.compression.provider (main, or a provider's name)"
        return Resolution(why=f"auto: {' and '.join(unused)} {are} alone sends nothing; {named} does", unused=unused)

    def _serving(self, model: str) -> Resolution:
        """A model that is named without who serves it: as far as its name tells."""
        name = provider_of(model)
        if name is None:
            why = f"auxiliary.compression.model is {model}, but provider does not say who serves it"
            return Resolution(why=why, missing=True)
        return self._served_by(name, self._named(name), f"auxiliary.compression.model is {model}")

    def _served_by(self, provider: str, known: Known, why: str) -> Resolution:
        if not self._key(known) and known.key_variable:
            missing = f"{provider} is configured, but {self._variable(known)} is not set"
            return Resolution(why=missing, missing=True)
        return self._asked(self._endpoint(provider, known, self.task.base_url), why)

    def _asked(self, endpoint: Endpoint, why: str) -> Resolution:
        main = self._main()
        same_place = main is not None and main.base_url.rstrip("/") == endpoint.base_url.rstrip("/")
        return Resolution(endpoint=endpoint, main=main if same_place else None, why=why)

    def _small_model(self, endpoint: Endpoint) -> str:
        """The small model of a provider everybody knows; elsewhere nothing is known but the conversation's own."""
        known = KNOWN.get(endpoint.name)
        return endpoint.model if known is None or endpoint.name in self.config.providers else known.small_model

    def _as_main(self, main: Endpoint | None) -> Resolution:
        if main is None:
            told = f"the key for {self.model} is not set" if provider_of(self.model) else "the model is not known"
            return Resolution(why=f"auxiliary.compression.provider is main, but {told}", missing=True)
        endpoint = self._with_task(main, self.task.model or main.model)
        return Resolution(endpoint=endpoint, why="auxiliary.compression.provider is main")

    def _main(self) -> Endpoint | None:
        """The conversation's own model, where its provider and key are known."""
        if self.talking_to is not None:
            return msgspec.structs.replace(self.talking_to, timeout=self.task.timeout)
        name = provider_of(self.model)
        if name is None or self.model is None or not self._own_key(KNOWN[name]):
            return None
        known = KNOWN[name]
        belief = self._belief(self.model)
        return Endpoint(
            name=name,
            wire=known.wire,
            base_url=self._base_url(known),
            model=self.model,
            key=self._own_key(known),
            context_length=belief.model.context_window,
            max_output=belief.model.max_output,
            timeout=self.task.timeout,
        )

    def _named(self, provider: str) -> Known:
        """A section under providers, or a provider everybody knows; a section may correct a known one."""
        section = self.config.providers.get(provider)
        known = KNOWN.get(provider)
        if section is None:
            if known is None:
                raise ConfigError(f"auxiliary.compression.provider: there is no section providers.{provider}")
            return known
        base = section.base_url or (known.base_url if known else KNOWN[section.wire].base_url)
        variable = section.api_key_env or (known.key_variable if known else "")
        return Known(section.wire, base, variable, section.model or (known.small_model if known else ""))

    def _endpoint(self, name: str, known: Known, base_url: str | None) -> Endpoint:
        model = self.task.model or known.small_model
        if not model:
            raise ConfigError("auxiliary.compression.model: this endpoint needs the name of a model")
        endpoint = Endpoint(
            name=name,
            wire=known.wire,
            base_url=base_url or self._base_url(known),
            model=model,
            key=self._key(known),
        )
        return self._with_task(endpoint, model)

    def _with_task(self, endpoint: Endpoint, model: str) -> Endpoint:
        belief = self._belief(model)
        return msgspec.structs.replace(
            endpoint,
            model=model,
            context_length=self.task.context_length or belief.model.context_window,
            max_output=belief.model.max_output if belief.known else None,
            timeout=self.task.timeout,
            extra_body=_object(self.task.extra_body),
            reasoning_effort=self.task.reasoning_effort,
            reuse_prefix=self.task.reuse_prefix and model == self.model,
        )

    def _belief(self, model: str) -> Belief:
        return look_up(model, self.config.models)

    def _variable(self, known: Known) -> str:
        return self.task.api_key_env or known.key_variable

    def _key(self, known: Known) -> str:
        return self.environment.get(self._variable(known), "").strip() if self._variable(known) else ""

    def _own_key(self, known: Known) -> str:
        return self.environment.get(known.key_variable, "").strip()

    def _base_url(self, known: Known) -> str:
        given = self.environment.get(known.base_url_variable, "").strip() if known.base_url_variable else ""
        return given or known.base_url


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = jsonio.decode(text)
    except jsonio.NotJSON:
        value = None
    if not isinstance(value, dict):
        raise ConfigError("auxiliary.compression.extra_body: allowed is a mapping, or a JSON object as text")
    return value
