"""Client settings that `midfold run` reads, and how it redirects the client to the gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from midfold.cli.client_setup import CHATGPT_BASE, OPENAI_BASE, PrivateAddress, setup_of
from midfold.errors import ConfigError

ADDRESS = PrivateAddress("http://127.0.0.1:4000", "mfk_secret")


def write(file: Path, text: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")


def home(folder: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(folder), **more}


def test_any_command_gets_the_addresses_of_both_vendors(tmp_path: Path) -> None:
    setup = setup_of(["agent", "-x"], home(tmp_path), tmp_path)
    assert setup.upstreams == {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
    launch = setup.launch(ADDRESS)
    openai = "http://127.0.0.1:4000/mfk_secret/openai/v1"
    assert launch.command == ["agent", "-x"]
    assert launch.environment == {
        "OPENAI_BASE_URL": openai,
        "OPENAI_API_BASE": openai,
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:4000/mfk_secret/anthropic",
    }


def test_a_base_address_that_is_set_is_the_upstream_with_its_path(tmp_path: Path) -> None:
    given = home(tmp_path, OPENAI_API_BASE="http://lab/llm", ANTHROPIC_BASE_URL="https://corp/anthropic/v1")
    setup = setup_of(["agent"], given, tmp_path)
    assert setup.upstreams == {"openai": "http://lab/llm", "anthropic": "https://corp/anthropic/v1"}
    environment = setup.launch(ADDRESS).environment
    assert environment["OPENAI_BASE_URL"] == "http://127.0.0.1:4000/mfk_secret/openai"
    assert environment["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:4000/mfk_secret/anthropic/v1"
    assert set(setup_of(["agent"], given, tmp_path, "http://other").upstreams.values()) == {"http://other"}


@pytest.mark.parametrize("base", ["localhost:8000", "file:///etc/passwd", "http://"])
def test_what_is_no_address_is_refused(tmp_path: Path, base: str) -> None:
    with pytest.raises(ConfigError, match="must begin with http"):
        setup_of(["agent"], home(tmp_path, OPENAI_BASE_URL=base), tmp_path)


def test_a_proxy_is_not_asked_for_the_gateway(tmp_path: Path) -> None:
    plain = setup_of(["agent"], home(tmp_path, NO_PROXY="corp"), tmp_path).launch(ADDRESS).environment
    assert "NO_PROXY" not in plain
    given = home(tmp_path, HTTPS_PROXY="http://proxy:3128", NO_PROXY="corp")
    found = setup_of(["agent"], given, tmp_path).launch(ADDRESS).environment
    assert (found["NO_PROXY"], found["no_proxy"]) == ("corp,127.0.0.1", "corp,127.0.0.1")


def test_claude_code_is_told_in_the_environment(tmp_path: Path) -> None:
    setup = setup_of(["/opt/bin/claude", "-p", "hi"], home(tmp_path, OPENAI_BASE_URL="nonsense"), tmp_path)
    launch = setup.launch(ADDRESS)
    assert (setup.name, setup.upstreams) == ("claude", {"anthropic": "https://api.anthropic.com"})
    assert launch.command == ["/opt/bin/claude", "-p", "hi"]
    assert launch.environment == {"ANTHROPIC_BASE_URL": "http://127.0.0.1:4000/mfk_secret/anthropic"}


def test_the_settings_of_claude_code_count_more_than_the_environment(tmp_path: Path) -> None:
    project = tmp_path / "project"
    write(tmp_path / ".claude/settings.json", {"env": {"ANTHROPIC_BASE_URL": "https://user"}})
    given = home(tmp_path, ANTHROPIC_BASE_URL="https://env", ANTHROPIC_CUSTOM_HEADERS="x-team: blue")
    assert setup_of(["claude"], given, project).upstreams == {"anthropic": "https://user"}
    write(project / ".claude/settings.local.json", {"env": {"ANTHROPIC_BASE_URL": "https://project"}})
    setup = setup_of(["claude", "-c"], given, project)
    launch = setup.launch(ADDRESS)
    assert setup.upstreams == {"anthropic": "https://project"}
    assert launch.command[:2] == ["claude", "--settings"] and launch.command[3:] == ["-c"]
    assert json.loads(launch.command[2]) == {"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:4000/anthropic"}}
    assert launch.environment["ANTHROPIC_CUSTOM_HEADERS"] == "x-team: blue\nx-midfold-key: mfk_secret"


def codex(tmp_path: Path, status: str) -> str:
    """Create a program that only prints its login status."""
    file = tmp_path / "codex"
    write(file, f"#!/bin/sh\necho '{status}' >&2\n")
    file.chmod(0o755)
    return str(file)


def test_codex_goes_where_its_login_leads(tmp_path: Path) -> None:
    for status, expected in (("Logged in using ChatGPT", CHATGPT_BASE), ("Logged in using an API key", OPENAI_BASE)):
        setup = setup_of([codex(tmp_path, status), "exec"], home(tmp_path), tmp_path)
        assert setup.upstreams == {"openai": expected}
    assert setup_of(["codex"], home(tmp_path, OPENAI_BASE_URL="http://lab/v1"), tmp_path).upstreams == {
        "openai": "http://lab/v1"
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "http://one"),
        (("-c", 'model_provider="two"'), "http://two"),
        (("--config=model_provider=two",), "http://two"),
        (("exec", "-p", "work"), "http://two"),
        (("--profile=work",), "http://two"),
    ],
)
def test_the_provider_that_codex_would_use_is_found(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    text = """
        model_provider = "one"
        [profiles.work]
        model_provider = "two"
        [model_providers.one]
        base_url = "http://one"
        [model_providers.two]
        base_url = "http://two"
    """
    write(tmp_path / ".codex/config.toml", text)
    setup = setup_of(["codex", *words], home(tmp_path), tmp_path)
    launch = setup.launch(ADDRESS)
    assert setup.upstreams == {"openai": expected}
    said = " ".join(launch.command)
    assert f'model_providers.{expected[-3:]}.base_url="http://127.0.0.1:4000/openai"' in said
    assert "model_provider=" not in said.removesuffix(" ".join(words)) and "mfk_secret" not in said
    assert launch.environment == {"MIDFOLD_RUN_KEY": "mfk_secret"}


def test_opencode_is_told_what_counts_more_than_its_files(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    text = (
        '{ // mine\n "provider": {"lab.x": {"options": {"baseURL": "http://lab//v1", "apiKey": "k,}"}},}, /* end */ }'
    )
    write(tmp_path / ".config/opencode/opencode.jsonc", text)
    write(project / "opencode.json", {"provider": {"anthropic": {"options": {"baseURL": "https://corp/v1"}}}})
    write(tmp_path / ".local/share/opencode/auth.json", {"openrouter": {"type": "api", "key": "sk-or"}})
    inline = {"theme": "dark", "provider": {"anthropic": {"options": {"timeout": 5}}}}
    given = home(tmp_path, OPENCODE_CONFIG_CONTENT=json.dumps(inline), OPENAI_API_KEY="sk-mine")
    setup = setup_of(["opencode", "run", "hi"], given, project / "deep/er")
    assert sorted(setup.upstreams.values()) == [
        "http://lab//v1",
        "https://api.openai.com/v1",
        "https://corp/v1",
        "https://openrouter.ai/api/v1",
    ]
    launch = setup.launch(ADDRESS)
    assert launch.command == ["opencode", "run", "hi"]
    told = json.loads(launch.environment["OPENCODE_CONFIG_CONTENT"])
    assert told["theme"] == "dark" and told["provider"]["anthropic"]["options"]["timeout"] == 5
    places = {name: row["options"]["baseURL"] for name, row in told["provider"].items()}
    for name, place in places.items():
        gateway = place.removeprefix("http://127.0.0.1:4000/mfk_secret/").removesuffix("/v1")
        assert gateway in setup.upstreams, name
    assert set(places) == {"lab.x", "anthropic", "openai", "openrouter"}
    for secret in ("sk-or", "sk-mine", "k,}"):
        assert secret not in launch.environment["OPENCODE_CONFIG_CONTENT"]


def test_files_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    write(tmp_path / ".codex/config.toml", "model_provider = [")
    write(tmp_path / ".claude/settings.json", "{" * 100_000)
    write(tmp_path / ".config/opencode/opencode.json", '{"provider": "/*')
    given = home(tmp_path, OPENAI_BASE_URL="http://lab")
    assert setup_of(["codex"], given, tmp_path).upstreams == {"openai": "http://lab"}
    assert setup_of(["claude"], given, tmp_path).upstreams == {"anthropic": "https://api.anthropic.com"}
    assert len(setup_of(["opencode"], given, tmp_path).upstreams) == 3


def test_the_page_has_the_key_as_a_password() -> None:
    assert ADDRESS.page == "http://midfold:mfk_secret@127.0.0.1:4000/"


def test_addresses_of_the_projects_files_are_told_from_the_users(tmp_path: Path) -> None:
    project, given = tmp_path / "project", home(tmp_path)
    theirs = {"provider": {"anthropic": {"options": {"baseURL": "https://evil/v1"}}}}
    mine = {"provider": {"lab": {"options": {"baseURL": "https://lab/v1"}}}}
    write(tmp_path / ".config/opencode/opencode.json", mine)
    write(project / "opencode.json", theirs)
    setup = setup_of(["opencode"], given, project)
    assert {setup.upstreams[name]: file for name, file in setup.project_files.items()} == {
        "https://evil/v1": project / "opencode.json"
    }
    assert setup.own_bases == ("https://lab/v1",)
    assert not setup_of(["opencode"], given, project, "https://other").project_files
    overriding = home(tmp_path, OPENCODE_CONFIG_CONTENT=json.dumps(theirs))
    assert not setup_of(["opencode"], overriding, project).project_files
    write(tmp_path / ".claude/settings.local.json", {"env": {"ANTHROPIC_BASE_URL": "https://mine"}})
    assert not setup_of(["claude"], given, tmp_path).project_files


@pytest.mark.parametrize("base", ["http://host:99999", "http://:80/v1", "https://[::1"])
def test_addresses_without_a_valid_host_and_port_are_refused(tmp_path: Path, base: str) -> None:
    with pytest.raises(ConfigError):
        setup_of(["agent"], home(tmp_path, OPENAI_BASE_URL=base), tmp_path)
