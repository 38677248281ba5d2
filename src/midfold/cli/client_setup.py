"""Find each client's upstream, and the options and environment that route it through a private gateway.

1. The upstream is the base URL that the client would use without midfold, from its environment or its files.
   Credentials stay with the client.
2. The user's files are never written; overrides are set in the environment or with options.
3. Options are visible to all accounts in a process list, so the gateway key is never one of them.
4. A base URL from a project file is marked, because its author may not be the user (`trusted_hosts.py`).
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from midfold.errors import ConfigError

Environment = Mapping[str, str]
OPENAI, ANTHROPIC = "openai", "anthropic"
OPENAI_BASE, ANTHROPIC_BASE = "https://api.openai.com/v1", "https://api.anthropic.com"
CHATGPT_BASE = "https://chatgpt.com/backend-api/codex"
KEY_VARIABLE = "MIDFOLD_RUN_KEY"
LOOPBACK = "127.0.0.1"
PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
LOGIN_SECONDS = 20.0
OPENCODE_PROVIDERS = {
    ANTHROPIC: ("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    OPENAI: (OPENAI_BASE, "OPENAI_API_KEY"),
    "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
}
"""Default base URL and key variable of opencode's providers."""
VENDOR_BASES = (OPENAI_BASE, ANTHROPIC_BASE, CHATGPT_BASE, *(base for base, _ in OPENCODE_PROVIDERS.values()))


class PrivateAddress(NamedTuple):
    """Base URL and key of a run's gateways."""

    place: str
    key: str

    def of(self, name: str, base: str) -> str:
        """Return a gateway URL without the key, ending in /v1 if the upstream's URL does."""
        return f"{self.place}/{name}{_version(base)}"

    def with_key(self, name: str, base: str) -> str:
        return f"{self.place}/{self.key}/{name}{_version(base)}"

    @property
    def page(self) -> str:
        """Return a URL for browsers, with the key as a password (browsers scope it to host and port)."""
        return self.place.replace("://", f"://midfold:{self.key}@", 1) + "/"


class ClientLaunch(NamedTuple):
    """Command line of a client and the environment variables to set."""

    command: list[str]
    environment: dict[str, str]


class ClientSetup(NamedTuple):
    """Upstreams of a client by gateway name, and a function that builds its command line."""

    name: str
    upstreams: dict[str, str]
    launch: Callable[[PrivateAddress], ClientLaunch]
    project_files: Mapping[str, Path] = {}
    """Project files that set an upstream, by gateway name."""
    own_bases: tuple[str, ...] = ()
    """Base URLs named by the user's own files and environment."""


def setup_of(
    command: Sequence[str], environment: Environment, folder: Path, upstream: str | None = None
) -> ClientSetup:
    """Return the setup of a command run in `folder`; `upstream` overrides the client's upstreams."""
    name = PurePath(command[0]).name.lower().removesuffix(".exe").removesuffix(".cmd")
    setup = _SETUPS.get(name, _any_command)(list(command), environment, folder)
    upstreams = {key: upstream or base for key, base in setup.upstreams.items()}
    for base in upstreams.values():
        _check(base)

    def launch(address: PrivateAddress) -> ClientLaunch:
        found = setup.launch(address)
        return found._replace(environment={**_without_proxy(environment), **found.environment})

    projects = {} if upstream is not None else setup.project_files
    return setup._replace(upstreams=upstreams, launch=launch, project_files=projects)


def _check(base: str) -> None:
    scheme, separator, rest = base.partition("://")
    if scheme.lower() not in ("http", "https") or not separator or not rest.partition("/")[0]:
        raise ConfigError("the client's base URL must begin with http:// or https://")
    if origin_of(base) is None:
        raise ConfigError("the client's base URL has no valid host and port")


def origin_of(base: str) -> str | None:
    """Return scheme, host and port of a URL, or None if it has none."""
    try:
        parts = urlsplit(base)
        usual = {"http": 80, "https": 443}[parts.scheme]
        port = parts.port or usual
    except (ValueError, KeyError):
        return None
    if not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{port}" if port != usual else "")


def _version(base: str) -> str:
    return "/v1" if urlsplit(base).path.rstrip("/").endswith("/v1") else ""


def _without_proxy(environment: Environment) -> dict[str, str]:
    """Return variables that exempt the gateway from a configured proxy."""
    if not any(environment.get(name) for name in PROXIES):
        return {}
    kept = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = ",".join(filter(None, [kept, LOOPBACK]))
    return {"no_proxy": hosts, "NO_PROXY": hosts}


def _any_command(command: list[str], environment: Environment, folder: Path) -> ClientSetup:
    upstreams = {
        OPENAI: environment.get("OPENAI_BASE_URL") or environment.get("OPENAI_API_BASE") or OPENAI_BASE,
        ANTHROPIC: environment.get("ANTHROPIC_BASE_URL") or ANTHROPIC_BASE,
    }

    def launch(address: PrivateAddress) -> ClientLaunch:
        openai = address.with_key(OPENAI, upstreams[OPENAI])
        anthropic = address.with_key(ANTHROPIC, upstreams[ANTHROPIC])
        return ClientLaunch(
            command, {"OPENAI_BASE_URL": openai, "OPENAI_API_BASE": openai, "ANTHROPIC_BASE_URL": anthropic}
        )

    return ClientSetup(command[0], upstreams, launch)


def _claude_code(command: list[str], environment: Environment, folder: Path) -> ClientSetup:
    """Set up Claude Code; a base URL in its settings files overrides the environment."""
    variable = "ANTHROPIC_BASE_URL"
    own = Path(environment.get("CLAUDE_CONFIG_DIR") or _home(environment) / ".claude")
    files = [folder / ".claude/settings.local.json", folder / ".claude/settings.json", own / "settings.json"]
    found = {file: _text(_table(_read_json(file)).get("env"), variable) for file in files}
    source, written = next(((file, base) for file, base in found.items() if base), (None, None))
    upstream = written or environment.get(variable) or ANTHROPIC_BASE

    def launch(address: PrivateAddress) -> ClientLaunch:
        ours = {variable: address.with_key(ANTHROPIC, upstream)}
        if written is None:
            return ClientLaunch(command, ours)
        # --settings overrides those files. The key must not be an option, so it is sent as a header.
        override = json.dumps({"env": {variable: address.of(ANTHROPIC, upstream)}})
        headers = [*filter(None, [environment.get("ANTHROPIC_CUSTOM_HEADERS")]), f"x-midfold-key: {address.key}"]
        return ClientLaunch(
            [command[0], "--settings", override, *command[1:]], {**ours, "ANTHROPIC_CUSTOM_HEADERS": "\n".join(headers)}
        )

    is_own = source in (None, files[-1]) or _is_home(folder, environment)
    projects = {} if source is None or is_own else {ANTHROPIC: source}
    bases = (found[files[-1]], environment.get(variable))
    return ClientSetup("claude", {ANTHROPIC: upstream}, launch, projects, tuple(filter(None, bases)))


def _codex(command: list[str], environment: Environment, folder: Path) -> ClientSetup:
    """Set up Codex; a custom provider only gets another address, the built-in one needs a replacement."""
    settings = _read_toml(Path(environment.get("CODEX_HOME") or _home(environment) / ".codex") / "config.toml")
    options = dict(_codex_options(command))
    profile = options.get("profile") or _text(settings, "profile") or ""
    chosen = _table(_table(settings.get("profiles")).get(profile))
    provider = options.get("model_provider") or _text(chosen, "model_provider") or _text(settings, "model_provider")
    provider = provider or OPENAI
    written = _text(_table(settings.get("model_providers")).get(provider), "base_url")
    upstream = written or _text(settings, "openai_base_url") or environment.get("OPENAI_BASE_URL")
    upstream = upstream or _codex_login_base(command[0])

    def launch(address: PrivateAddress) -> ClientLaunch:
        name = provider if written else "midfold"
        place = f"model_providers.{name}"
        lines = {f"{place}.base_url": json.dumps(address.of(OPENAI, upstream))}
        lines[f"{place}.env_http_headers.x-midfold-key"] = json.dumps(KEY_VARIABLE)
        lines[f"{place}.supports_websockets"] = "false"
        if not written:
            lines |= {"model_provider": '"midfold"', f"{place}.name": '"OpenAI through midfold"'}
            lines |= {f"{place}.wire_api": '"responses"', f"{place}.requires_openai_auth": "true"}
        arguments = [word for key, value in lines.items() for word in ("-c", f"{key}={value}")]
        return ClientLaunch([command[0], *arguments, *command[1:]], {KEY_VARIABLE: address.key})

    return ClientSetup("codex", {OPENAI: upstream}, launch)


def _codex_options(command: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the profile and settings given on the command line."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        value = value if equals else following
        if name in ("-p", "--profile"):
            yield "profile", value
        elif name in ("-c", "--config"):
            key, _, text = value.partition("=")
            yield key.strip(), text.strip().strip("\"'")


def _codex_login_base(program: str) -> str:
    """Return the base URL for Codex's login, from `codex login status`."""
    try:
        status = subprocess.run(
            [program, "login", "status"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LOGIN_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return OPENAI_BASE
    return CHATGPT_BASE if "chatgpt" in (status.stdout + status.stderr).lower() else OPENAI_BASE


def _opencode(command: list[str], environment: Environment, folder: Path) -> ClientSetup:
    """Set up opencode: providers with a base URL in its files, and those with a key or a login.

    Uses `OPENCODE_CONFIG_CONTENT`, which overrides every file; a file named by `OPENCODE_CONFIG` does not override
    the project's.
    """
    variable = "OPENCODE_CONFIG_CONTENT"
    inline = _table(_parse_json(environment.get(variable) or "{}"))
    upstreams: dict[str, str] = {}
    named = _opencode_logins(environment)
    for name, (base, key) in OPENCODE_PROVIDERS.items():
        if environment.get(key) or name in named:
            upstreams[name] = base
    projects: dict[str, Path] = {}
    bases: list[str] = []
    own = _opencode_own_files(environment)
    read = [(file, _read_json(file)) for file in (*own, *_opencode_project_files(environment, folder))]
    for file, settings in (*read, (None, inline)):
        for name, row in _table(_table(settings).get("provider")).items():
            written = _text(_table(row).get("options"), "baseURL")
            if place := written or upstreams.get(name) or OPENCODE_PROVIDERS.get(name, ("",))[0]:
                upstreams[name] = place
            if written and file is not None and file not in own and not _is_home(file.parent, environment):
                projects[name] = file
            elif written:
                projects.pop(name, None)
                bases.append(written)
    upstreams = upstreams or {name: base for name, (base, _) in OPENCODE_PROVIDERS.items()}
    gateways = {f"{number}-{re.sub('[^A-Za-z0-9_-]', '-', name)}": name for number, name in enumerate(upstreams, 1)}

    def launch(address: PrivateAddress) -> ClientLaunch:
        providers = dict(_table(inline.get("provider")))
        for gateway, name in gateways.items():
            row = _table(providers.get(name))
            place = address.with_key(gateway, upstreams[name])
            providers[name] = {**row, "options": {**_table(row.get("options")), "baseURL": place}}
        return ClientLaunch(command, {variable: json.dumps({**inline, "provider": providers})})

    sources = {gateway: projects[name] for gateway, name in gateways.items() if name in projects}
    found = {gateway: upstreams[name] for gateway, name in gateways.items()}
    return ClientSetup("opencode", found, launch, sources, tuple(bases))


def _opencode_own_files(environment: Environment) -> list[Path]:
    """Return the user's own files, in increasing precedence."""
    home = Path(environment.get("XDG_CONFIG_HOME") or _home(environment) / ".config") / "opencode"
    files = [home / name for name in ("config.json", "opencode.json", "opencode.jsonc")]
    files += [Path(environment["OPENCODE_CONFIG"])] if environment.get("OPENCODE_CONFIG") else []
    return [file for file in files if file.is_file()]


def _opencode_project_files(environment: Environment, folder: Path) -> list[Path]:
    """Return the project's files, in increasing precedence; they override the user's."""
    above = [folder, *folder.parents]
    top = next((place for place in above if (place / ".git").exists()), folder)
    projects = above[: above.index(top) + 1][::-1]
    files = [
        place / part for place in projects for part in ("opencode.json", "opencode.jsonc", ".opencode/opencode.json")
    ]
    return [file for file in files if file.is_file()]


def _opencode_logins(environment: Environment) -> frozenset[str]:
    """Return the names of the providers that opencode has a login for."""
    data = Path(environment.get("XDG_DATA_HOME") or _home(environment) / ".local/share")
    return frozenset(_table(_read_json(data / "opencode/auth.json")))


_SETUPS = {"claude": _claude_code, "codex": _codex, "opencode": _opencode}
CLIENTS = tuple(_SETUPS)


def _home(environment: Environment) -> Path:
    return Path(environment.get("HOME") or environment.get("USERPROFILE") or ".")


def _is_home(folder: Path, environment: Environment) -> bool:
    """Return whether a folder is the user's home, whose files do not belong to a project."""
    return folder.resolve() == _home(environment).resolve()


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(table: Any, name: str) -> str | None:
    value = _table(table).get(name)
    return value if isinstance(value, str) and value else None


def _read_toml(file: Path) -> dict[str, Any]:
    """Read TOML; return an empty table for an unreadable file, which the client will report."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _read_json(file: Path) -> Any:
    try:
        return _parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


_STRING = r'"(?>(?:\\.|[^"\\])*)"?'
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*+|/\*(?:.*?\*/|.*)", re.DOTALL)
_LAST_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)


def _parse_json(text: str) -> Any:
    """Parse JSON that may have comments and trailing commas; return None if it is invalid."""
    plain = _COMMENT.sub(lambda found: found[1] or " ", text)
    try:
        return json.loads(_LAST_COMMA.sub(lambda found: found[1] or "", plain))
    except (ValueError, RecursionError):
        return None
