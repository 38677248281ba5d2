"""`midfold run` as users run it: real client processes, a provider on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

from midfold.testing.doubles import Request
from support.provider_replies import Turn
from support.rules_provider import RulesProvider
from support.terminal import CTRL_C, Terminal

MIDFOLD = (sys.executable, "-m", "midfold")
WINDOW = 9_000
PATIENCE = 120
KEY = re.compile(r"mfk_[\w-]{43}")


class Home(NamedTuple):
    """User's home, with settings that fold early."""

    folder: Path
    environment: dict[str, str]

    def run(
        self, *words: str, cwd: Path | None = None, before: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]:
        command = [*MIDFOLD, "run", *words]
        command = ["/bin/sh", "-c", f'{before}; exec "$@"', "sh", *command] if before else command
        given = {**self.environment, **more}
        return subprocess.run(
            command, capture_output=True, text=True, env=given, cwd=cwd or self.folder, timeout=PATIENCE, check=False
        )

    def program(self, name: str, text: str) -> str:
        """Create a program on the PATH."""
        file = self.folder / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!{sys.executable}\n{dedent(text)}", encoding="utf-8")
        file.chmod(0o755)
        return str(file)

    def contents(self) -> dict[str, bytes]:
        """Return every file except the store."""
        files = [file for file in self.folder.rglob("*") if file.is_file() and "midfold" not in file.parent.parts]
        return {str(file.relative_to(self.folder)): file.read_bytes() for file in files}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    config = tmp_path / "settings.yaml"
    config.write_text(f'models:\n  "*":\n    context_window: {WINDOW}\n', encoding="utf-8")
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    given = {**kept, "HOME": str(tmp_path), "MIDFOLD_CONFIG": str(config), "PYTHONDONTWRITEBYTECODE": "1"}
    given["PATH"] = f"{tmp_path / 'bin'}:{given['PATH']}"
    given["TMPDIR"] = str(tmp_path / "tmp")
    (tmp_path / "tmp").mkdir()
    return Home(tmp_path, given)


@pytest.fixture
def provider() -> Iterator[RulesProvider]:
    with RulesProvider(answer, window=WINDOW) as found:
        yield found


def answer(request: Request) -> Turn:
    return Turn(f"noted {len(request.raw)}")


def base_addresses(provider: RulesProvider) -> Mapping[str, str]:
    return {"OPENAI_BASE_URL": f"{provider.url}/v1", "ANTHROPIC_BASE_URL": provider.url}


BOTH_SDKS = """
    import sys
    import anthropic, openai

    def ask_openai(said):
        answer = openai.OpenAI(api_key="sk-mine").chat.completions.create(model="gpt-4o", messages=said)
        return answer.choices[0].message.content

    def ask_anthropic(said):
        client = anthropic.Anthropic(api_key="sk-ant-mine")
        return client.messages.create(model="claude-opus-4-6", max_tokens=50, messages=said).content[0].text

    for ask in (ask_openai, ask_anthropic):
        said = []
        for turn in range(14):
            text = f"Step {turn}. " + f"File part_{turn}.py was read, all is well. " * 90
            said.append({"role": "user", "content": text})
            said.append({"role": "assistant", "content": ask(said)})
        print(said[-1]["content"])
    sys.exit(7)
"""


def test_both_sdks_outlive_their_window_and_only_the_store_is_written(home: Home, provider: RulesProvider) -> None:
    script = home.program("agent", BOTH_SDKS)
    before = home.contents()
    done = home.run("--", script, **base_addresses(provider))
    assert done.returncode == 7, done.stderr
    assert done.stdout.count("noted") == 2 and provider.rejected == []
    first, last = done.stderr.strip().splitlines()
    assert "pages: http://midfold:mfk_" in first
    told = re.fullmatch(
        r"midfold: 28 requests, compacted (\d+) times; ([\d,]+) tokens not sent; ([\d,]+) originals stored "
        r"in sqlite (\S+): midfold sessions view (\S+)",
        last,
    )
    assert told is not None, last
    assert int(told[1]) >= 2 and int(told[2].replace(",", "")) > WINDOW and int(told[3]) >= 20
    assert home.contents() == before
    assert (home.folder / ".local/share/midfold/sessions.db").exists()
    seen = subprocess.run(
        [*MIDFOLD, "sessions", "view", told[5]],
        capture_output=True,
        env=home.environment,
        timeout=PATIENCE,
        check=False,
    )
    assert seen.returncode == 0, seen.stderr


def test_the_providers_get_the_clients_own_keys_and_never_the_gateways(home: Home, provider: RulesProvider) -> None:
    script = home.program("agent", BOTH_SDKS.replace("range(14)", "range(1)"))
    done = home.run("--", script, **base_addresses(provider))
    assert done.returncode == 7, done.stderr
    [asked, other] = provider.requests
    assert (asked.path, other.path) == ("/v1/chat/completions", "/v1/messages")
    assert "sk-mine" in str(asked.headers) and "sk-ant-mine" in str(other.headers)
    key = KEY.findall(done.stderr)[0]
    for request in provider.requests:
        assert key not in f"{request.path} {request.headers} {request.text}"
    assert key.encode() not in (home.folder / ".local/share/midfold/sessions.db").read_bytes()
    assert "2 requests, no compaction needed" in done.stderr


TRIES = """
    import json, os, sys, urllib.error, urllib.request

    base = os.environ["OPENAI_BASE_URL"]
    place, key = base.split("/mfk_")[0], "mfk_" + base.split("/mfk_")[1].split("/")[0]

    def status(address, **headers):
        asked = urllib.request.Request(address, headers=headers)
        try:
            with urllib.request.urlopen(asked) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    wrong = key[:-1] + ("A" if key[-1] != "A" else "B")
    print(json.dumps({
        "none": [status(place + path) for path in
                 ("/", "/healthz", "/readyz", "/openai/v1/models", "/sessions", "/api/sessions")],
        "wrong": [status(f"{place}/{wrong}/openai/v1/models"), status(f"{place}/{wrong}/"),
                  status(place + "/sessions", **{"x-midfold-key": wrong}),
                  status(place + "/sessions", Authorization="Basic BASIC_WRONG")],
        "right": [status(base + "/models"), status(place + "/openai/v1/models", **{"x-midfold-key": key}),
                  status(place + "/sessions", **{"x-midfold-key": key}), status(f"{place}/{key}/healthz")],
    }))
""".replace("BASIC_WRONG", b64encode(b"midfold:wrong").decode())


def test_without_the_key_nobody_sees_anything(home: Home, provider: RulesProvider) -> None:
    done = home.run("--", home.program("tries", TRIES), **base_addresses(provider))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"none": [401] * 6, "wrong": [401] * 4, "right": [200] * 4}
    assert len(provider.requests) == 2
    assert "no request reached the gateway" in done.stderr


REPEATED = """
    import base64, os, urllib.error, urllib.request

    base = os.environ["OPENAI_BASE_URL"]
    place, key = base.split("/mfk_")[0], "mfk_" + base.split("/mfk_")[1].split("/")[0]
    encoded = "".join(f"%{byte:02x}" for byte in key.encode())
    basic = "Basic " + base64.b64encode(f"any:{key}".encode()).decode()
    for address in (f"{base}/models", f"{base}/{key}/models", f"{base}/models?a={key}&b={encoded}",
                    f"{base}/{encoded}/models", f"{base}/models/x{key}y"):
        headers = {"x-midfold-key": key, "authorization": basic, "x-api-key": key, "cookie": f"k={key}; l={encoded}",
                   "referer": f"{place}/{key}/", "x-other": f"Bearer {key}", f"x-{key}": "1", "x-mine": "kept"}
        try:
            urllib.request.urlopen(urllib.request.Request(address, headers=headers)).read()
        except urllib.error.HTTPError:
            pass
"""


def test_key_is_removed_from_every_header_path_and_query(home: Home, provider: RulesProvider) -> None:
    done = home.run("--", home.program("repeated", REPEATED), **base_addresses(provider))
    assert done.returncode == 0, done.stderr
    sent = [unquote(f"{request.path} {request.headers}") for request in provider.requests]
    assert len(sent) >= 3, "what is left of a request is sent"
    key = KEY.findall(done.stderr)[0]
    for told in sent:
        assert key.lower() not in told.lower()
        assert b64encode(f"any:{key}".encode()).decode() not in told
        assert "kept" in told


def test_the_page_opens_with_the_address_that_is_told(home: Home) -> None:
    command = [*MIDFOLD, "run", "--", "/bin/sh", "-c", "read line"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=home.environment
    ) as process:
        assert process.stderr is not None and process.stdin is not None
        told = re.search(r"http://(\S+)@(\S+)/", process.stderr.readline())
        assert told is not None
        credential = b64encode(told[1].encode()).decode()
        shown = subprocess.run(
            [sys.executable, "-c", PAGE, f"http://{told[2]}/", credential],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        process.stdin.close()
        assert process.wait(PATIENCE) == 1
    assert "<title>" in shown.stdout and "midfold" in shown.stdout


PAGE = """
import sys, urllib.request
asked = urllib.request.Request(sys.argv[1], headers={"Authorization": "Basic " + sys.argv[2]})
print(urllib.request.urlopen(asked).read().decode())
"""


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 5), (signal.SIGUSR1, 6)], ids=str
)
def test_signals_reach_the_command_and_its_end_is_ours(home: Home, number: int, expected: int) -> None:
    script = home.program(
        "waits",
        """
        import signal, sys, time
        signal.signal(signal.SIGINT, lambda *_: sys.exit(5))
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(6))
        print("ready", flush=True)
        time.sleep(100)
        """,
    )
    process = subprocess.Popen(
        [*MIDFOLD, "run", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=home.environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    told = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == expected, told
    assert "no request reached the gateway" in told


def test_what_is_ignored_here_is_ignored_by_the_command(home: Home) -> None:
    script = home.program(
        "asks", "import signal; print(signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGTERM))"
    )
    assert home.run(script, before="trap '' HUP").stdout.split() == ["1", "0"]


def test_a_key_in_the_terminal_reaches_the_command_once(home: Home) -> None:
    script = home.program(
        "counts",
        """
        import signal, time
        seen = []
        signal.signal(signal.SIGINT, lambda *_: seen.append(1))
        print("ready", flush=True)
        while not seen:
            time.sleep(0.05)
        time.sleep(1.5)
        print("seen", len(seen), flush=True)
        """,
    )
    given = {**home.environment, "TERM": "xterm"}
    with Terminal([*MIDFOLD, "run", script], folder=home.folder, environment=given) as terminal:
        terminal.wait_for("ready", PATIENCE)
        terminal.press(CTRL_C)
        terminal.wait_for("seen 1", PATIENCE)
        terminal.wait_for("no request reached the gateway", PATIENCE)
        assert terminal.ended() == 0
        assert terminal.shown.count("seen") == 1


def test_a_command_that_stops_itself_gives_the_terminal_back(home: Home) -> None:
    script = home.program(
        "stops",
        """
        import os, signal
        print("ready", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        print("goes on", flush=True)
        """,
    )
    given = {**home.environment, "TERM": "xterm"}
    with Terminal([*MIDFOLD, "run", script], folder=home.folder, environment=given) as terminal:
        terminal.wait_for("ready", PATIENCE)
        status = Path(f"/proc/{terminal.process.pid}/status")
        ends = time.monotonic() + PATIENCE
        while "State:\tT" not in status.read_text() and time.monotonic() < ends:
            time.sleep(0.05)
        assert "State:\tT" in status.read_text()
        os.killpg(terminal.process.pid, signal.SIGCONT)
        terminal.wait_for("goes on", PATIENCE)


def test_commands_that_cannot_be_run_end_as_in_a_shell(home: Home) -> None:
    missing = home.run("no-such-command", "--flag")
    assert (missing.returncode, "no-such-command: command not found" in missing.stderr) == (127, True)
    (home.folder / "plain").write_text("text", encoding="utf-8")
    assert home.run(str(home.folder / "plain")).returncode == 126
    wrong = home.run("true", OPENAI_BASE_URL="localhost:1")
    assert (wrong.returncode, "must begin with http" in wrong.stderr) == (2, True)


CODEX = """
    import os, sys, tomllib, urllib.request

    words = sys.argv[1:]
    if words == ["login", "status"]:
        sys.exit("Not logged in")
    said = "\\n".join(words[place + 1] for place, word in enumerate(words) if word == "-c")
    settings = tomllib.loads(said)
    if os.environ["MIDFOLD_RUN_KEY"] in " ".join(sys.argv):
        sys.exit("the key is in the arguments")
    chosen = settings["model_providers"][settings.get("model_provider", "corp")]
    headers = {name: os.environ[variable] for name, variable in chosen["env_http_headers"].items()}
    headers |= {"authorization": "Bearer sk-codex", "content-type": "application/json"}
    body = b'{"model": "gpt-5", "input": [{"role": "user", "content": "hi"}]}'
    asked = urllib.request.Request(chosen["base_url"] + "/responses", body, headers)
    try:
        print(urllib.request.urlopen(asked).status, words[-2:])
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
"""


@pytest.mark.parametrize(
    "settings",
    [
        'openai_base_url = "{}/v1"\n',
        'model_provider = "corp"\n[model_providers.corp]\nname = "Corp"\nbase_url = "{}/v1"\n',
        'profile = "work"\n[profiles.work]\nmodel_provider = "corp"\n[model_providers.corp]\nbase_url = "{}/v1"\n',
    ],
    ids=["built-in", "own provider", "profile"],
)
def test_codex_is_told_with_options_that_have_no_key_in_them(
    home: Home, provider: RulesProvider, settings: str
) -> None:
    home.program("codex", CODEX)
    (home.folder / ".codex").mkdir()
    (home.folder / ".codex/config.toml").write_text(settings.format(provider.url), encoding="utf-8")
    before = home.contents()
    done = home.run("codex", "exec", "hello")
    assert (done.returncode, done.stdout) == (0, "200 ['exec', 'hello']\n"), done.stderr
    [asked] = provider.requests
    assert (asked.path, "sk-codex" in str(asked.headers)) == ("/v1/responses", True)
    assert home.contents() == before and "midfold: 1 request" in done.stderr


def test_the_doctor_proves_that_a_request_arrives_and_sends_it_nowhere(home: Home, provider: RulesProvider) -> None:
    def doctor() -> str:
        command = [*MIDFOLD, "doctor", "--client", "codex", "--json"]
        given = {**home.environment, "OPENAI_BASE_URL": f"{provider.url}/v1"}
        done = subprocess.run(command, capture_output=True, text=True, env=given, timeout=PATIENCE, check=False)
        [found] = [row for row in json.loads(done.stdout) if row["what"] == "client"]
        return f"{found['status']}: {found['told']}"

    assert doctor() == "problem: codex is not on the PATH"
    home.program("codex", CODEX)
    assert re.match(r"ok: received a request from codex after .*\(openai-responses\); it was not forwarded", doctor())
    home.program("codex", "raise SystemExit(3)")
    assert doctor().startswith("problem: codex exited with code 3 without a model request")
    assert provider.requests == []


# Addresses that a project's own files set

ASK_ANTHROPIC = """
    import json, os, sys, urllib.request
    settings = json.loads(sys.argv[sys.argv.index("--settings") + 1])["env"]
    name, _, key = os.environ["ANTHROPIC_CUSTOM_HEADERS"].partition(": ")
    body = {"model": "claude-opus-4-6", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    headers = {name: key, "x-api-key": "sk-ant-mine", "content-type": "application/json"}
    url = settings["ANTHROPIC_BASE_URL"] + "/v1/messages"
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
    print("asked", flush=True)
"""


def set_base(folder: Path, base: str) -> Path:
    """Write a project's settings that name an address."""
    file = folder / ".claude" / "settings.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"env": {"ANTHROPIC_BASE_URL": base}}))
    return file


def test_a_host_that_a_project_names_is_refused_where_nobody_can_be_asked(home: Home, provider: RulesProvider) -> None:
    home.program("claude", ASK_ANTHROPIC)
    project = home.folder / "project"
    file, host = set_base(project, provider.url), urlsplit(provider.url).netloc
    done = home.run("claude", cwd=project)
    assert done.returncode != 0 and not provider.requests
    said = " ".join(done.stderr.split())
    assert f"requests go to {provider.url}, set by {file}" in said
    assert f"use --trust-host {host} to allow it" in said
    for options in (["--trust-host", host], ["--upstream", provider.url]):
        done = home.run(*options, "claude", cwd=project)
        assert (done.returncode, done.stdout) == (0, "asked\n"), done.stderr
    assert len(provider.requests) == 2
    assert home.run("--trust-host", "other", "claude", cwd=project).returncode != 0


def test_a_host_that_a_project_names_is_asked_about_once(home: Home, provider: RulesProvider) -> None:
    home.program("claude", ASK_ANTHROPIC)
    project = home.folder / "project"
    set_base(project, provider.url)
    given = {**home.environment, "TERM": "xterm"}
    for answer in ("n", "y"):
        with Terminal([*MIDFOLD, "run", "claude"], folder=project, environment=given) as terminal:
            terminal.wait_for("Send your requests and credentials to", PATIENCE)
            terminal.wait_for("[n]o:", PATIENCE)
            terminal.answer(answer)
            if answer == "y":
                terminal.wait_for("asked", PATIENCE)
            terminal.ended()
        assert len(provider.requests) == (answer == "y")
    done = home.run("claude", cwd=project)
    assert done.stdout == "asked\n" and f"requests go to {provider.url}" in done.stderr, done.stderr
    kept = home.folder / ".config" / "midfold" / "trusted_hosts.json"
    assert json.loads(kept.read_text()) == [provider.url]


def test_a_host_that_the_user_configured_is_not_asked_about(home: Home, provider: RulesProvider) -> None:
    home.program("claude", ASK_ANTHROPIC)
    project = home.folder / "project"
    set_base(project, f"{provider.url}/")
    done = home.run("claude", cwd=project, ANTHROPIC_BASE_URL=provider.url)
    assert done.stdout == "asked\n", done.stderr
    set_base(home.folder, provider.url)
    assert home.run("claude", cwd=project).stdout == "asked\n"
