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
Name = Annotated[str, Meta(pattern=NAME, extra={"allowed": "a name: no slashes, colons, spaces or only dots"})]
ADDRESS = "an http:// or https:// address without a user name, password or query"
Url = Annotated[str, Meta(pattern=URL, extra={"allowed": ADDRESS, "url": True})]
Variable = Annotated[
    str,
    Meta(
        pattern=_VARIABLE, extra={"allowed": "the NAME of an environment variable, in capitals, never the key itself"}
    ),
]
Variables = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(?:, ?[A-Za-z_][A-Za-z0-9_]*)*$",
        extra={"allowed": "NAMES of environment variables with commas between them", "words": True},
    ),
]
JsonObject = Annotated[
    str,
    Meta(pattern=r"^\{[^\x00-\x1f\x7f]*\}$", extra={"allowed": "a mapping, or a JSON object as text", "json": True}),
]
Words = Annotated[
    str, Meta(pattern=_WORDS, extra={"allowed": "a list of words, or words with commas between them", "words": True})
]
StoreUrl = Annotated[
    str,
    Meta(
        pattern=_STORE,
        extra={
            "allowed": "sqlite:///PATH, postgresql://HOST/DATABASE or memory:, without a password "
            "(PGPASSWORD or a password file has it)"
        },
    ),
]
KeyHeader = Annotated[
    Literal["auto", "bearer", "x-api-key"],
    doc(
        "header that carries the key of api_key_env: Authorization: Bearer, or x-api-key; auto goes by "
        "wire, else by the path, and sends Bearer where both vendors have the path, except to api.anthropic.com"
    ),
]

KNOWN_PROVIDERS = ("auto", "openrouter", "nous", "main", "openai", "anthropic", "local")
CHOICES_NOT_PROVIDERS = ("auto", "main")


class Compression(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When and how conversations are compacted."""

    enabled: Annotated[bool, doc("whether conversations are compacted at all")] = True
    threshold: Annotated[
        float, Meta(ge=0.0, le=1.0, description="fraction of the input window at which compaction starts")
    ] = 0.50
    target_ratio: Annotated[
        float, Meta(ge=0.10, le=0.80, description="fraction of the threshold kept word for word as the tail")
    ] = 0.20
    protect_last_n: Annotated[Positive, doc("messages at the end that always stay word for word")] = 20
    prune: Annotated[
        Literal["digest", "placeholder", "off"],
        doc("what stands for an old tool result: an informative digest, a fixed text, or itself"),
    ] = "digest"
    orphan_calls: Annotated[
        Literal["bridge", "strip"],
        doc("a tool call without a result gets a stub result (bridge) or is removed (strip)"),
    ] = "bridge"
    lossy_fallback: Annotated[
        bool, doc("whether a summary made without a model may stand in when the summary model fails")
    ] = True
    verify: Annotated[
        bool, doc("whether a model's summary is checked against the fold: grounding, gaps, verbatim asks")
    ] = True
    output_reservation: Annotated[
        Count | None, doc("tokens of the window kept free for the answer; null leaves it to the request")
    ] = None
    minimum_context_floor: Annotated[
        Count, doc("tokens below which compaction never starts, whatever the threshold says")
    ] = 0


class Context(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The engine that manages the context."""

    engine: Annotated[Name, doc("name of the context engine; plugins are used only when named here")] = "compressor"


class AuxiliaryTask(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model for one auxiliary task."""

    model: Annotated[Line | None, doc("model that writes summaries; null picks one")] = None
    provider: Annotated[
        Line,
        doc(
            "who serves that model; auto: in chat and agent whom they talk to, elsewhere nobody is asked",
            extra={"allowed": f"{', '.join(KNOWN_PROVIDERS)}, or the name of a section under providers"},
        ),
    ] = "auto"
    base_url: Annotated[Url | None, doc("address of an OpenAI-compatible endpoint for summaries")] = None
    api_key_env: Annotated[
        Variable | None, doc("environment variable that holds the API key; null uses the provider's own")
    ] = None
    timeout: Annotated[float, Meta(gt=0.0, le=3600.0, description="seconds one summary call may take")] = 120.0
    context_length: Annotated[
        Positive | None, doc("window of the summary model; null takes it from the models table")
    ] = None
    extra_body: Annotated[JsonObject | None, doc("fields added to every summary request, such as a temperature")] = None
    reasoning_effort: Annotated[
        Line | None, doc("how hard a reasoning model should think about a summary; null leaves it out")
    ] = None
    reuse_prefix: Annotated[
        bool | None,
        doc(
            "ask the conversation's own model with the prefix it has cached instead of sending turns anew; null: where "
            "that costs less and whoever is asked has had these very messages from here (chat, agent and gateway)"
        ),
    ] = None
    subscriptions: Annotated[
        bool,
        doc(
            "whether the gateway, with provider main, may ask for summaries with the token of a client's subscription "
            "(Claude and ChatGPT accounts); API keys are used either way"
        ),
    ] = False


class Auxiliary(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Models for auxiliary tasks; `compression` writes the summaries."""

    compression: AuxiliaryTask = AuxiliaryTask()


class Provider(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A user-defined endpoint."""

    base_url: Annotated[Url | None, doc("address of the endpoint; null uses the wire format's own")] = None
    api_key_env: Annotated[Variable | None, doc("environment variable that holds the API key")] = None
    model: Annotated[Line | None, doc("model asked for when nothing else names one")] = None
    wire: Annotated[Literal["openai", "anthropic"], doc("the wire format the endpoint speaks")] = "openai"


class PromptCaching(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prompt cache breakpoints: whether, where and for how long."""

    enabled: Annotated[
        Literal["auto", "on", "off"],
        doc("mark requests where it is known to help (auto), wherever a marker can be written, or never"),
    ] = "auto"
    strategy: Annotated[
        Literal["planned", "system_and_3"],
        doc("breakpoints where they save most, or on the system prompt and the last three messages"),
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
        doc("who summarises a fold made before the threshold: the configured model, or rules, for free"),
    ] = "configured"


class StoreSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Storage of sessions."""

    url: Annotated[StoreUrl | None, doc("database of sessions; null: a file of your own")] = None
    lease_seconds: Annotated[
        Positive, doc("how long a compaction that crashed can keep others from compacting its session")
    ] = 60
    connections: Annotated[Positive, doc("connections to the database that one process opens at most")] = 16
    redact: Annotated[
        bool, doc("redact messages before they are stored; unfolding then no longer gives the exact original")
    ] = False


class AgentSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of `midfold chat` and `midfold agent`."""

    model: Annotated[Line | None, doc("the model to talk to; null picks one by the keys that are set")] = None
    provider: Annotated[
        Line,
        doc(
            "who serves it",
            extra={"allowed": "auto, anthropic, openai, openrouter, nous, or the name of a section under providers"},
        ),
    ] = "auto"
    longest_answer: Annotated[
        Positive | None, doc("most tokens of one answer; null asks for a share of the window")
    ] = None
    timeout: Annotated[
        float, Meta(gt=0.0, le=3600.0, description="seconds without a byte before an answer is given up")
    ] = 300.0
    max_steps: Annotated[Positive, doc("most requests to the model for one thing a user says")] = 200
    command_timeout: Annotated[float, Meta(gt=0.0, le=86400.0, description="seconds before a command is killed")] = (
        120.0
    )
    output_characters: Annotated[
        int,
        Meta(
            ge=200, le=LARGEST, description="most characters of one tool result; the middle of longer ones is left out"
        ),
    ] = 20_000
    shell_environment: Annotated[
        Variables | None,
        doc("variables with keys, tokens or passwords that commands get all the same; others are kept back"),
    ] = None
    background: Annotated[
        bool, doc("whether folds are prepared in the background; off suits servers that answer one at a time")
    ] = True
    behind_gateway: Annotated[
        bool, doc("whether a midfold gateway is in front of the model: it looks after what grew between turns")
    ] = False


class GatewaySettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of `midfold serve`, the gateway between agents and providers."""

    upstream: Annotated[
        Url | None, doc("address of the provider for every model that no pattern under upstreams matches")
    ] = None
    api_key_env: Annotated[
        Variable | None, doc("environment variable with the key for gateway.upstream; null sends the client's own key")
    ] = None
    key_header: KeyHeader = "auto"
    routes: Annotated[
        Literal["known", "all"],
        doc(
            "what clients reach with the keys of api_key_env: generation, counting, models, embeddings and "
            "the files, batches and stored responses they made themselves (known), or everything that the provider's "
            "account lets the key do, others' files and the organisation included (all)"
        ),
    ] = "known"
    mode: Annotated[
        Literal["hygiene", "manage", "passthrough"],
        doc("compact at 85 % of the context length (hygiene), at compression.threshold (manage), or never"),
    ] = "hygiene"
    recall: Annotated[
        Literal["auto", "on", "off"],
        doc(
            "whether models are offered tools that look into what was folded, run by the gateway: from the first fold "
            "of a conversation on where its client has tools (auto), from its first turn on (on), or never"
        ),
    ] = "auto"
    summary_wait: Annotated[
        float,
        Meta(
            ge=0.0,
            le=3600.0,
            description="seconds a request waits at most for a summary that a model has not finished; then its fold is "
            "made without a model",
        ),
    ] = 2.0
    defer_to_client: Annotated[
        bool,
        doc(
            "leave Claude Code, Codex and opencode to their own compaction where it comes before the model's limit: "
            "their conversations are folded only when the window is nearly full"
        ),
    ] = False
    record: Annotated[
        Literal["all", "folded"],
        doc(
            "conversations whose sizes and usage are written down for the pages: all, or only folded ones; "
            "what is said is stored when a conversation is folded, either way"
        ),
    ] = "all"
    keep_turns: Annotated[
        int,
        Meta(
            ge=0,
            le=3_650,
            description="days for which turns of conversations that the provider keeps (previous_response_id, "
            "conversation) are stored before they are folded, so that these can be folded after a restart; 0: never",
        ),
    ] = 0
    hygiene_hard_message_limit: Annotated[
        Positive, doc("messages from which a conversation is compacted whatever its size")
    ] = 5_000
    host: Annotated[Line, doc("address to listen on")] = "127.0.0.1"
    hosts: Annotated[
        Words | None,
        doc(
            "names this gateway may be called by besides this machine's own, for a proxy in front of it; "
            "without keys a request for any other name is refused"
        ),
    ] = None
    origins: Annotated[
        Words | None,
        doc(
            "pages, editors and extensions that may use the gateway from inside a browser: "
            "https://chat.example.com, http://localhost:3000, vscode-webview://*"
        ),
    ] = None
    port: Annotated[int, Meta(ge=1, le=65_535, description="port to listen on")] = 8787
    retries: Annotated[
        int,
        Meta(
            ge=0,
            le=10,
            description="how often a connection that fails before the first byte of an answer is tried again",
        ),
    ] = 2
    connect_timeout: Annotated[
        float, Meta(gt=0.0, le=600.0, description="seconds a connection to an upstream may take")
    ] = 10.0
    timeout: Annotated[float, Meta(gt=0.0, le=86_400.0, description="seconds an upstream may be silent")] = 600.0
    largest_body: Annotated[Positive, doc("bytes of the largest request that is taken")] = 67_108_864
    largest_total: Annotated[Positive, doc("bytes of all requests together that are held before they are sent")] = (
        536_870_912
    )
    body_seconds: Annotated[
        float, Meta(gt=0.0, le=86_400.0, description="seconds a client may take to send its request")
    ] = 60.0
    log: Annotated[
        Literal["off", "requests"],
        doc("a line of JSON on standard error for each request, without anything that was said"),
    ] = "off"


class Key(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A client's gateway key; only its hash is stored."""

    hash: Annotated[
        Annotated[
            str, Meta(pattern=r"^(sha256:[0-9a-f]{64})?$", extra={"allowed": "sha256: and 64 hexadecimal digits"})
        ],
        doc("what `midfold keys new NAME` printed; an empty one lets nobody in"),
    ] = ""


class UpstreamSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Destination of requests for models that match a pattern."""

    base_url: Annotated[Url | None, doc("address of the provider")] = None
    api_key_env: Annotated[
        Variable | None, doc("environment variable that holds the API key; null sends the client's own key")
    ] = None
    key_header: KeyHeader = "auto"
    wire: Annotated[
        Literal["any", "openai", "anthropic"],
        doc("the wire format the provider speaks; requests of another one are refused"),
    ] = "any"
    timeout: Annotated[
        Annotated[float, Meta(gt=0.0, le=86_400.0)] | None,
        doc("seconds this upstream may be silent; null takes gateway.timeout"),
    ] = None


ProviderName = Annotated[str, Meta(pattern=NAME.replace("^", f"^(?!(?:{'|'.join(CHOICES_NOT_PROVIDERS)})$)", 1))]
ModelPattern = Annotated[str, Meta(pattern=LINE)]


class Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings; `Config()` has the defaults."""

    compression: Compression = Compression()
    context: Context = Context()
    auxiliary: Auxiliary = Auxiliary()
    providers: Annotated[
        Mapping[ProviderName, Provider], doc("Endpoints with a name of your own, for auxiliary.compression.provider.")
    ] = {}
    prompt_caching: PromptCaching = PromptCaching()
    store: StoreSettings = StoreSettings()
    agent: AgentSettings = AgentSettings()
    models: Annotated[
        Mapping[ModelPattern, ModelOverride],
        doc("What you know better than the built-in table, by a pattern of model names (gpt-4.1*)."),
    ] = {}
    gateway: GatewaySettings = GatewaySettings()
    keys: Annotated[
        Mapping[Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")], Key],
        doc("Who may use the gateway: each has sessions of their own. `midfold keys new NAME` makes one."),
    ] = {}
    upstreams: Annotated[
        Mapping[ModelPattern, UpstreamSettings],
        doc("Where the gateway sends requests, by a pattern of model names (claude-*)."),
    ] = {}
    folder: str | None = None
    """Not a setting: directory of the configuration file, existing or not; plugins are searched there."""

    def values(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        plain: dict[str, Any] = to_builtins(self)
        del plain["folder"]
        return plain


SECTIONS = tuple(name for name in Config.__struct_fields__ if name != "folder")
