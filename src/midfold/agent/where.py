"""Which model is talked to, and where sessions are kept: from what was asked, the settings and the keys present.

Rules of this file:
1. Nothing is sent anywhere that an option, a setting or a present key does not name.
2. Keys are read by name from the environment that is passed in, and are never shown.
"""

from __future__ import annotations

from collections.abc import Mapping

from midfold.api import believe
from midfold.config import Config
from midfold.errors import ConfigError
from midfold.providers import KNOWN, Known, provider_of
from midfold.summarize.endpoint import Endpoint, Wire

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai": "gpt-5.1",
    "openrouter": "anthropic/claude-sonnet-4.5",
    "nous": "Hermes-4-405B",
}
"""The model of a provider that is talked to when none is named."""
LOCAL = "endpoint"


def endpoint_for(
    config: Config,
    environment: Mapping[str, str],
    *,
    model: str | None = None,
    provider: str | None = None,
    base_url: str | None = None,
    wire: Wire | None = None,
) -> Endpoint:
    """The model to talk to. Raises ConfigError with what to set where nothing says which."""
    settings = config.agent
    name = model or settings.model
    who = provider or settings.provider
    if base_url is not None and who == "auto":
        known = Known(wire or "openai", base_url, "", "")
        who = LOCAL
    else:
        who = _owner(name, environment) if who == "auto" else who
        known = _known(config, who)
    name = name or known.small_model
    if not name:
        raise ConfigError(f"which model? Give --model, or set agent.model or providers.{who}.model")
    key = environment.get(known.key_variable, "").strip() if known.key_variable else ""
    if known.key_variable and not key:
        raise ConfigError(f"{who} needs a key: set the environment variable {known.key_variable}")
    belief = believe(name, config)
    given = environment.get(known.base_url_variable, "").strip() if known.base_url_variable else ""
    return Endpoint(
        name=who,
        wire=wire or known.wire,
        base_url=base_url or given or known.base_url,
        model=name,
        key=key,
        context_length=belief.model.context_window,
        max_output=belief.model.max_output if belief.known else None,
        timeout=settings.timeout,
    )


def _owner(model: str | None, environment: Mapping[str, str]) -> str:
    """Who serves a model of this name; without a name, the first provider whose key is there."""
    if model is not None:
        own = provider_of(model)
        if own is None:
            raise ConfigError(
                f"who serves {model}? Set agent.provider to a section under providers, or give --base-url"
            )
        return own
    present = [name for name, known in KNOWN.items() if environment.get(known.key_variable, "").strip()]
    if not present:
        names = ", ".join(known.key_variable for known in KNOWN.values())
        raise ConfigError(f"no model to talk to: set one of {names}, or give --base-url URL --model NAME")
    return present[0]


def _known(config: Config, provider: str) -> Known:
    """A section under providers, or a provider everybody knows; `small_model` is the one to talk to."""
    section, known = config.providers.get(provider), KNOWN.get(provider)
    if section is None:
        if known is None:
            raise ConfigError(f"agent.provider: there is no section providers.{provider}")
        return known._replace(small_model=MODELS[provider])
    base = section.base_url or (known.base_url if known else KNOWN[section.wire].base_url)
    variable = section.api_key_env or (known.key_variable if known else "")
    return Known(section.wire, base, variable, section.model or MODELS.get(provider, ""))


def secret_variables(config: Config) -> frozenset[str]:
    """The environment variables that the settings name as keys: commands of the agent are not given them."""
    named = [section.api_key_env for section in config.providers.values()]
    named += [row.api_key_env for row in config.upstreams.values()]
    named += [config.auxiliary.compression.api_key_env, config.gateway.api_key_env]
    named += [known.key_variable for known in KNOWN.values()]
    return frozenset(filter(None, named))
