"""Environment of commands that the agent runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from midfold.agent import AgentAssembly
from midfold.agent.tools import Toolbox
from midfold.agent.tools.shell import command_environment, is_secret
from midfold.config import Config, load
from midfold.config.schema import AgentSettings, GatewaySettings, Provider, UpstreamSettings
from midfold.errors import ConfigError
from midfold.transcript import jsonio
from midfold.transcript.message import ToolCall

SECRET = "of-no-shape-at-all"


@pytest.mark.parametrize(
    "name",
    [
        *("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "SOME_KEY", "KEY", "APIKEY", "SSH_PRIVATE_KEY", "stripe_api_key"),
        *("GITHUB_TOKEN", "GH_TOKEN", "TOKEN", "NPM_AUTH", "GITLAB_PAT", "CI_JOB_TOKENS", "AWS_SESSION_TOKEN"),
        *("CLIENT_SECRET", "SECRET", "AWS_SECRET_ACCESS_KEY", "DJANGO_SECRET", "MY_COOKIE", "clientSecret"),
        *("PASSWORD", "DB_PASSWORD", "MYSQL_ROOT_PASSWORD", "DBPASSWORD", "SMTP_PASS", "SMTP_PASSWD", "DB_PWD"),
        *("GOOGLE_CREDENTIALS", "GOOGLE_APPLICATION_CREDENTIALS", "GPG_PASSPHRASE", "SENTRY_DSN"),
        *("DATABASE_URL", "TEST_DATABASE_URL", "PGPASSWORD", "PGHOST", "PGPASSFILE", "PGSERVICE"),
        *("MIDFOLD_STORE__URL", "MIDFOLD_ANYTHING", "X" * 5_000),
    ],
)
def test_names_that_are_kept_back(name: str) -> None:
    assert is_secret(name, SECRET)


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "PWD", "OLDPWD", "SHELL", "TERM", "LANG", "LC_ALL", "USER", "TMPDIR", "EDITOR", "PAGER"),
        *("VIRTUAL_ENV", "PYTHONPATH", "NODE_ENV", "GOPATH", "CARGO_HOME", "JAVA_HOME", "KEYBOARD", "MONKEY_PATH"),
        *("SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM", "PAGES", "COMPASS", "XDG_RUNTIME_DIR", "AUTHOR", "BYPASS_CI"),
    ],
)
def test_names_that_are_passed_on(name: str) -> None:
    assert not is_secret(name, "ordinary")


@pytest.mark.parametrize(
    "value",
    ["postgresql://me:hunter22@db/x", "sk-ant-api03-" + "aB3" * 30, "ghp_" + "a1B2" * 9, "AKIA" + "ABCD2345" * 2],
)
def test_values_that_open_doors_are_kept_back_under_any_name(value: str) -> None:
    assert command_environment({"INNOCENT": value, "PATH": "/bin"}) == {"PATH": "/bin"}


def test_what_is_named_is_let_through_and_nothing_else() -> None:
    given = {"GITHUB_TOKEN": "a", "NPM_TOKEN": "b", "LAB": "c", "PATH": "/bin"}
    assert command_environment(given, hidden={"LAB"}, named=["GITHUB_TOKEN"]) == {"GITHUB_TOKEN": "a", "PATH": "/bin"}
    assert command_environment(given, hidden={"LAB"}, named=["LAB"]) == {"LAB": "c", "PATH": "/bin"}


def test_a_command_sees_no_key_that_any_setting_names(tmp_path: Path) -> None:
    config = Config(
        agent=AgentSettings(shell_environment="NPM_TOKEN, WANTED"),
        providers={"lab": Provider(api_key_env="LAB", base_url="http://127.0.0.1:1")},
        upstreams={"*": UpstreamSettings(base_url="http://127.0.0.1:1", api_key_env="UP")},
        gateway=GatewaySettings(api_key_env="GATE"),
    )
    hidden = dict.fromkeys(("LAB", "UP", "GATE", "MIDFOLD_X", "PGPASSWORD", "OPENAI_API_KEY"), SECRET)
    environment = {"PATH": os.environ["PATH"], **hidden, "NPM_TOKEN": "one", "WANTED": "two", "OTHER_TOKEN": SECRET}
    with AgentAssembly(tmp_path, config, environment, store="memory:") as workshop:
        toolbox = Toolbox(workshop.tools(lambda: workshop.sessions.session("none")))
        text = toolbox.run(ToolCall("c", "shell", jsonio.text_of({"command": "env"}))).text
    assert SECRET not in text
    assert "NPM_TOKEN=one" in text
    assert "WANTED=two" in text


def test_the_setting_is_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("agent: {shell_environment: 'GITHUB_TOKEN, NPM_TOKEN'}\n")
    assert load(str(file)).config.agent.shell_environment == "GITHUB_TOKEN, NPM_TOKEN"
    file.write_text("agent: {shell_environment: 'GITHUB TOKEN'}\n")
    with pytest.raises(ConfigError, match="NAMES of environment variables"):
        load(str(file))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own word for it")
def test_midfolds_own_process_hides_its_environment() -> None:
    script = (
        "from midfold.agent.tools.shell import hide_own_environment; import ctypes; hide_own_environment();"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
