"""All settings, with their types, defaults and descriptions.

Everything else about a setting is derived from its declaration here: validation, error texts, the JSON Schema, `midfold
config show` and docs/reference/config.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins

from midfold.models import LARGEST, LINE, ModelOverride


def doc(description: str, extra: dict[str, str] | None = None) -> Meta:
    """Attach a description, which is used in errors and in the reference."""
    return Meta(description=description, extra=extra)


# Both Python and ECMAScript use these patterns; checks use fullmatch, so `$` never admits a final line break.
NAME = r"^(?!\.+$)[^/\\:\s\x00-\x1f\x7f-\x9f]+$"
URL = r"^[Hh][Tt][Tt][Pp][Ss]?://[^\s/?#@][^\s?#@]*$"
_STORE = r"^(?:memory:|sqlite:///[^\s]+|sqlite://|postgres(?:ql)?://(?:[^\s/:@]+@)?[^\s@]*)$"
_VARIABLE = r"^[A-Z_][A-Z0-9_]*$"
_WORDS = r"^[^\s,\x00-\x1f\x7f-\x9f]+(?:, ?[^\s,\x00-\x1f\x7f-\x9f]+)*$"

Positive = Annotated[int, Meta(ge=1, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Line = Annotated[str, Meta(pattern=LINE, extra={"allowed": "text on one line, not empty"})]
Name = Annotated[str, Meta(pattern=NAME, extra={"allowed": "a name without slashes, colons or spaces, not only dots"})]
ADDRESS = "an http:// or https:// address without a user name, password or query"
Url = Annotated[str, Meta(pattern=URL, extra={"allowed": ADDRESS, "url": True})]
Variable = Annotated[
    str,
    Meta(pattern=_VARIABLE, extra={"allowed": "the NAME of an environment variable in capitals, not the key itself"}),
]
Variables = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(?:, ?[A-Za-z_][A-Za-z0-9_]*)*$",
        extra={"allowed": "comma-separated NAMES of environment variables", "words": True},
    ),
]
JsonObject = Annotated[
    str,
    Meta(pattern=r"^\{[^\x00-\x1f\x7f]*\}$", extra={"allowed": "a mapping, or a JSON object as text", "json": True}),
]
Words = Annotated[
    str, Meta(pattern=_WORDS, extra={"allowed": "a list of words, or comma-separated words", "words": True})
]
StoreUrl = Annotated[
    str,
    Meta(
        pattern=_STORE,
        extra={
            "allowed": "sqlite:///PATH, postgresql://HOST/DATABASE or memory:, without a password "
            "(use PGPASSWORD or a password file)"
        },
    ),
]
KeyHeader = Annotated[
    Literal["auto", "bearer", "x-api-key"],
    doc(
        "header for the key of api_key_env: Authorization: Bearer, or x-api-key; auto decides by wire, then by path, "
        "and uses Bearer if both vendors have the path, except for api.anthropic.com"
    ),
]

KNOWN_PROVIDERS = ("auto", "openrouter", "nous", "main", "openai", "anthropic", "local")
CHOICES_NOT_PROVIDERS = ("auto", "main")


class Compression(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When and how conversations are compacted."""

    enabled: Annotated[bool, doc("enable compaction")] = True
    threshold: Annotated[
        float, Meta(ge=0.0, le=1.0, description="fraction of the input window at which compaction starts")
    ] = 0.50
    target_ratio: Annotated[
        float, Meta(ge=0.10, le=0.80, description="fraction of the threshold kept verbatim as the tail")
    ] = 0.20
    protect_last_n: Annotated[Positive, doc("messages at the end that are always kept verbatim")] = 20
    prune: Annotated[
        Literal["digest", "placeholder", "off"],
        doc("replacement of an old tool result: an informative digest, a fixed placeholder, or none (off)"),
    ] = "digest"
    orphan_calls: Annotated[
        Literal["bridge", "strip"],
        doc("a tool call without a result gets a stub result (bridge) or is removed (strip)"),
    ] = "bridge"
    lossy_fallback: Annotated[bool, doc("use the built-in summary when the summary model fails")] = True
    verify: Annotated[
        bool, doc("check a model's summary against the fold: grounding, gaps, verbatim user messages")
    ] = True
    output_reservation: Annotated[
        Count | None, doc("tokens of the window reserved for the response; null uses the request's own output limit")
    ] = None
    minimum_context_floor: Annotated[
        Count, doc("tokens below which compaction never starts, regardless of the threshold")
    ] = 0


class Context(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The engine that manages the context."""

    engine: Annotated[Name, doc("name of the context engine; a plugin is loaded only if named here")] = "compressor"


class AuxiliaryTask(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model for one auxiliary task."""

    model: Annotated[Line | None, doc("model that writes summaries; null selects a default")] = None
    provider: Annotated[
        Line,
        doc(
            "provider of that model; auto uses the session's provider in chat and agent, and no LLM elsewhere",
            extra={"allowed": f"{', '.join(KNOWN_PROVIDERS)}, or the name of a section under providers"},
        ),
    ] = "auto"
    base_url: Annotated[Url | None, doc("URL of an OpenAI-compatible endpoint for summaries")] = None
    api_key_env: Annotated[
        Variable | None, doc("environment variable with the API key; null uses the provider's default variable")
    ] = None
    timeout: Annotated[float, Meta(gt=0.0, le=3600.0, description="timeout of a summary request in seconds")] = 120.0
    context_length: Annotated[
        Positive | None, doc("context window of the summary model; null uses the models table")
    ] = None
    extra_body: Annotated[JsonObject | None, doc("fields added to every summary request, such as temperature")] = None
    reasoning_effort: Annotated[Line | None, doc("reasoning effort for summaries; null omits the field")] = None
    reuse_prefix: Annotated[
        bool | None,
        doc(
            "send summary requests to the conversation's own model with its cached prefix instead of the turns as new "
            "text; null: if that costs less and this process sent it the same messages (chat, agent and gateway)"
        ),
    ] = None
    subscriptions: Annotated[
        bool,
        doc(
            "let the gateway, with provider main, use a client's subscription token (Claude and ChatGPT accounts) for "
            "summary requests; API keys are used either way"
        ),
    ] = False


class Auxiliary(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Models for auxiliary tasks; `compression` writes the summaries."""

    compression: AuxiliaryTask = AuxiliaryTask()


class Provider(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A user-defined endpoint."""

    base_url: Annotated[Url | None, doc("URL of the endpoint; null uses the default of the wire format")] = None
    api_key_env: Annotated[Variable | None, doc("environment variable with the API key")] = None
    model: Annotated[Line | None, doc("model used when none is named elsewhere")] = None
    wire: Annotated[Literal["openai", "anthropic"], doc("wire format of the endpoint")] = "openai"


class PromptCaching(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prompt cache breakpoints: whether, where and for how long."""

    enabled: Annotated[
        Literal["auto", "on", "off"],
        doc("add cache breakpoints where known to help (auto), wherever supported (on), or never (off)"),
    ] = "auto"
    strategy: Annotated[
        Literal["planned", "system_and_3"],
        doc("place breakpoints where they save most, or on the system prompt and the last three messages"),
    ] = "planned"
    cache_ttl: Annotated[
        Literal["5m", "1h"], doc("lifetime of a cached prefix; 1h suits sessions with long breaks")
    ] = "5m"
    schedule: Annotated[
        Literal["auto", "threshold", "cheapest"],
        doc(
            "when to compact: at the threshold, and before it when rewriting the cached prefix is cheap (auto: where "
            "prices are known and the provider reports cached tokens); only at the threshold; or as early and as small "
            "as is cheapest"
        ),
    ] = "auto"
    schedule_summary: Annotated[
        Literal["configured", "local"],
        doc("summarizer for compactions before the threshold: the configured model, or the built-in one at no cost"),
    ] = "configured"


class StoreSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Storage of sessions."""

    url: Annotated[StoreUrl | None, doc("database of sessions; null uses a file in the user's data directory")] = None
    lease_seconds: Annotated[
        Positive, doc("seconds for which a crashed compaction can block others of its session")
    ] = 60
    connections: Annotated[Positive, doc("maximum database connections of one process")] = 16
    redact: Annotated[
        bool, doc("redact messages before storing them; unfolding then no longer returns the exact original")
    ] = False


class AgentSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of `midfold chat` and `midfold agent`."""

    model: Annotated[Line | None, doc("model of the agent; null selects one by the API keys that are set")] = None
    provider: Annotated[
        Line,
        doc(
            "provider of that model",
            extra={"allowed": "auto, anthropic, openai, openrouter, nous, or the name of a section under providers"},
        ),
    ] = "auto"
    longest_answer: Annotated[
        Positive | None, doc("maximum tokens of one response; null uses a share of the window")
    ] = None
    timeout: Annotated[
        float, Meta(gt=0.0, le=3600.0, description="seconds without data before a response is abandoned")
    ] = 300.0
    max_steps: Annotated[Positive, doc("maximum model requests per user message")] = 200
    command_timeout: Annotated[float, Meta(gt=0.0, le=86400.0, description="timeout of a shell command in seconds")] = (
        120.0
    )
    output_characters: Annotated[
        int,
        Meta(
            ge=200, le=LARGEST, description="maximum characters of a tool result; the middle of longer ones is omitted"
        ),
    ] = 20_000
    shell_environment: Annotated[
        Variables | None,
        doc("secret variables (keys, tokens, passwords) that commands receive anyway; all others are withheld"),
    ] = None
    background: Annotated[
        bool, doc("prepare compactions in the background; turn off for servers that handle one request at a time")
    ] = True
    behind_gateway: Annotated[
        bool, doc("a midfold gateway is in front of the model and handles growth between turns")
    ] = False


class GatewaySettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of `midfold serve`, the gateway between agents and providers."""

    upstream: Annotated[Url | None, doc("URL of the provider for models that match no pattern under upstreams")] = None
    api_key_env: Annotated[
        Variable | None,
        doc("environment variable with the API key for gateway.upstream; null forwards the client's key"),
    ] = None
    key_header: KeyHeader = "auto"
    routes: Annotated[
        Literal["known", "all"],
        doc(
            "routes open to clients when api_key_env is used: generation, counting, models, embeddings and the files, "
            "batches and stored responses they created themselves (known), or everything the key permits, including "
            "other users' files and organisation settings (all)"
        ),
    ] = "known"
    mode: Annotated[
        Literal["hygiene", "manage", "passthrough"],
        doc("compact at 85 % of the context length (hygiene), at compression.threshold (manage), or never"),
    ] = "hygiene"
    recall: Annotated[
        Literal["auto", "on", "off"],
        doc(
            "offer models recall tools, run by the gateway, to search folded messages: after a conversation's first "
            "compaction if its client uses tools (auto), from the first turn (on), or never (off)"
        ),
    ] = "auto"
    summary_wait: Annotated[
        float,
        Meta(
            ge=0.0,
            le=3600.0,
            description="maximum seconds a request waits for a summary model; then the built-in summary is used",
        ),
    ] = 2.0
    defer_to_client: Annotated[
        bool,
        doc(
            "let Claude Code, Codex and opencode compact themselves if they do so before the model's limit: the "
            "gateway then compacts only when the window is nearly full"
        ),
    ] = False
    record: Annotated[
        Literal["all", "folded"],
        doc(
            "conversations whose sizes and usage are recorded for the web pages: all, or only compacted ones; messages "
            "are stored when a conversation is compacted, either way"
        ),
    ] = "all"
    keep_turns: Annotated[
        int,
        Meta(
            ge=0,
            le=3_650,
            description="days to store turns of provider-side conversations (previous_response_id, conversation) that "
            "are not compacted yet, so that they can be compacted after a restart; 0: never",
        ),
    ] = 0
    hygiene_hard_message_limit: Annotated[
        Positive, doc("number of messages at which a conversation is compacted regardless of its size")
    ] = 5_000
    host: Annotated[Line, doc("address to listen on")] = "127.0.0.1"
    hosts: Annotated[
        Words | None,
        doc(
            "host names accepted besides this machine's own, for a proxy in front of the gateway; without keys, "
            "requests for any other name are refused"
        ),
    ] = None
    origins: Annotated[
        Words | None,
        doc(
            "browser origins (pages, editors, extensions) that may use the gateway: https://chat.example.com, "
            "http://localhost:3000, vscode-webview://*"
        ),
    ] = None
    port: Annotated[int, Meta(ge=1, le=65_535, description="port to listen on")] = 8787
    retries: Annotated[
        int,
        Meta(
            ge=0,
            le=10,
            description="retries of a connection that fails before the first byte of a response",
        ),
    ] = 2
    connect_timeout: Annotated[
        float, Meta(gt=0.0, le=600.0, description="timeout in seconds for connecting to an upstream")
    ] = 10.0
    timeout: Annotated[
        float, Meta(gt=0.0, le=86_400.0, description="seconds without data before an upstream times out")
    ] = 600.0
    largest_body: Annotated[Positive, doc("maximum bytes of a request")] = 67_108_864
    largest_total: Annotated[Positive, doc("maximum bytes of all requests held in memory together")] = 536_870_912
    body_seconds: Annotated[
        float, Meta(gt=0.0, le=86_400.0, description="timeout in seconds for receiving a client's request")
    ] = 60.0
    log: Annotated[
        Literal["off", "requests"],
        doc("write a JSON line to standard error for each request, without message content"),
    ] = "off"


class Key(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A client's gateway key; only its hash is stored."""

    hash: Annotated[
        Annotated[
            str, Meta(pattern=r"^(sha256:[0-9a-f]{64})?$", extra={"allowed": "sha256: and 64 hexadecimal digits"})
        ],
        doc("the hash printed by `midfold keys new NAME`; empty rejects every client"),
    ] = ""


class UpstreamSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Destination of requests for models that match a pattern."""

    base_url: Annotated[Url | None, doc("URL of the provider")] = None
    api_key_env: Annotated[
        Variable | None, doc("environment variable with the API key; null forwards the client's key")
    ] = None
    key_header: KeyHeader = "auto"
    wire: Annotated[
        Literal["any", "openai", "anthropic"],
        doc("wire format of the provider; requests in another one are refused"),
    ] = "any"
    timeout: Annotated[
        Annotated[float, Meta(gt=0.0, le=86_400.0)] | None,
        doc("seconds without data before this upstream times out; null uses gateway.timeout"),
    ] = None


ProviderName = Annotated[str, Meta(pattern=NAME.replace("^", f"^(?!(?:{'|'.join(CHOICES_NOT_PROVIDERS)})$)", 1))]
ModelPattern = Annotated[str, Meta(pattern=LINE)]


class Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings; `Config()` has the defaults."""

    compression: Compression = Compression()
    context: Context = Context()
    auxiliary: Auxiliary = Auxiliary()
    providers: Annotated[
        Mapping[ProviderName, Provider], doc("User-defined endpoints for auxiliary.compression.provider.")
    ] = {}
    prompt_caching: PromptCaching = PromptCaching()
    store: StoreSettings = StoreSettings()
    agent: AgentSettings = AgentSettings()
    models: Annotated[
        Mapping[ModelPattern, ModelOverride],
        doc("Overrides of the built-in models table, by a pattern of model names (gpt-4.1*)."),
    ] = {}
    gateway: GatewaySettings = GatewaySettings()
    keys: Annotated[
        Mapping[Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")], Key],
        doc("Gateway clients; each has its own sessions. `midfold keys new NAME` creates one."),
    ] = {}
    upstreams: Annotated[
        Mapping[ModelPattern, UpstreamSettings],
        doc("Destinations of gateway requests, by a pattern of model names (claude-*)."),
    ] = {}
    folder: str | None = None
    """Not a setting: directory of the configuration file, existing or not; plugins are searched there."""

    def values(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        plain: dict[str, Any] = to_builtins(self)
        del plain["folder"]
        return plain


SECTIONS = tuple(name for name in Config.__struct_fields__ if name != "folder")
