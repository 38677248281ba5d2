from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import midfold
from midfold.cli.main import main
from midfold.gateway import create_app
from midfold.testing.doubles import served
from support.gateways import call, settings
from support.pulse import provider

KEY = "sk-" + "not-a-real-key"


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(main, ["doctor", *arguments], catch_exceptions=False)


def told(result: Result, what: str) -> dict[str, str]:
    return next(finding for finding in json.loads(result.output) if finding["what"] == what)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_without_keys_it_says_that_summaries_are_made_locally_and_proves_a_compaction() -> None:
    result = run("--json")
    assert result.exit_code == 0
    assert "built in, no LLM" in told(result, "summaries")["told"]
    assert "originals unfold" in told(result, "compaction")["told"]


def test_a_key_is_named_by_its_variable_and_never_shown() -> None:
    result = run("--json", "--model", "claude-opus-4-6", ANTHROPIC_API_KEY=KEY)
    assert told(result, "summaries") == {
        "what": "summaries",
        "status": "note",
        "told": "built in, no LLM (auto: ANTHROPIC_API_KEY is set, but a key alone sends nothing; "
        "set auxiliary.compression.provider to main or a provider's name)",
    }
    assert KEY not in result.output


def test_who_is_named_is_told(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("auxiliary: {compression: {provider: anthropic}}\n")
    result = run("--json", "--config", str(file), ANTHROPIC_API_KEY=KEY)
    assert told(result, "summaries")["told"].startswith(
        "claude-haiku-4-5 at api.anthropic.com (auxiliary.compression.provider is anthropic)"
    )


def test_a_provider_without_its_key_is_a_problem_with_exit_code_1(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("auxiliary: {compression: {provider: openai}}\n")
    result = run("--config", str(file))
    assert result.exit_code == 1
    assert "OPENAI_API_KEY is not set" in result.output


def test_the_models_of_conversations_need_no_key_of_the_gateways(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        'gateway: {upstream: "http://127.0.0.1:9"}\nauxiliary: {compression: {provider: main}}\n'
        f'store: {{url: "sqlite:///{tmp_path}/s.db"}}\n'
    )
    found = told(run("--config", str(file), "--json"), "summaries")
    assert found["status"] == "ok" and found["told"].startswith("in the gateway, the model of each conversation")


def test_a_probe_that_cannot_connect_names_the_failure(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text('auxiliary: {compression: {base_url: "http://127.0.0.1:9/v1", model: small}}\n')
    result = run("--config", str(file), "--probe", "--json")
    assert result.exit_code == 1
    assert told(result, "probe")["told"].startswith("network: 127.0.0.1:9 could not be reached")


def test_store_upstreams_and_door_are_looked_at_where_they_are_configured(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        f"store: {{url: 'sqlite:///{tmp_path}/s.db'}}\n"
        "gateway: {upstream: 'http://127.0.0.1:9'}\n"
        "upstreams: {claude-*: {base_url: 'https://localhost', wire: anthropic}}\n"
    )
    result = run("--config", str(file), "--json")
    assert result.exit_code == 0
    assert told(result, "store") == {
        "what": "store",
        "status": "note",
        "told": f"{tmp_path}/s.db does not exist yet; the first session creates it",
    }
    assert not (tmp_path / "s.db").exists()
    midfold.open(f"sqlite:///{tmp_path}/s.db").close()
    result = run("--config", str(file), "--json")
    assert "0 sessions, all invariants hold" in told(result, "store")["told"]
    assert told(result, "access")["told"] == "127.0.0.1:8787, local access only, no keys"
    places = [row["told"] for row in json.loads(result.output) if row["what"] == "upstream"]
    assert places == [
        "127.0.0.1:9, API any, the client's own key",
        "localhost, API anthropic, the client's own key",
    ]
    probed = run("--config", str(file), "--json", "--probe")
    assert probed.exit_code == 1
    assert told(probed, "upstream")["told"] == "127.0.0.1:9 does not respond: ConnectError"


def test_requests_that_a_running_gateway_did_not_look_at_are_a_problem_with_what_to_do(tmp_path: Path) -> None:
    from midfold.gateway.exchange import Owner
    from midfold.gateway.metrics import Operations
    from midfold.gateway.request_size import ClientHistory

    def broken(owner: Owner, conversation: ClientHistory) -> ClientHistory:
        raise KeyError("secret words")

    file = tmp_path / "config.yaml"
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}
    with provider() as upstream, midfold.open("memory:") as sessions:
        config = settings(upstream)
        operations = Operations(config, sessions)
        app = create_app(config, sessions=sessions, environment={}, extra_routes=operations.routes())
        with served(operations.around(app)) as url:
            file.write_text(f"gateway: {{upstream: '{upstream}', port: {url.rpartition(':')[2]}}}\n")
            call(url, "POST", "/v1/chat/completions", body)
            assert told(run("--config", str(file), "--json", "--probe"), "gateway")["status"] == "ok"
            app.gateway.preparer.measurer.put_back = broken
            app.gateway.preparer.measurer.reads_everything = True
            status, headers, _ = call(url, "POST", "/v1/chat/completions", body)
            assert (status, headers["x-midfold-reason"]) == (200, "not looked at: KeyError")
            figures = call(url, "GET", "/metrics")[2].decode()
            assert 'midfold_unmanaged_requests_total{error="KeyError"} 1' in figures
            result = run("--config", str(file), "--json", "--probe")
    assert result.exit_code == 1
    found = told(result, "gateway")
    assert found["status"] == "problem"
    assert "forwarded 1 requests unmanaged (KeyError 1)" in found["told"]
    assert "report it" in found["told"]
    assert "secret words" not in result.output + figures
    gone = told(run("--config", str(file), "--json", "--probe"), "gateway")
    assert gone["status"] == "note"
    assert "not running at 127.0.0.1" in gone["told"]


@pytest.mark.parametrize(
    ("text", "what", "problem"),
    [
        ("gateway: {upstream: 'http://a.example', host: 0.0.0.0}\n", "access", "no gateway keys are configured"),
        ("gateway: {upstream: 'http://a.example', api_key_env: NOT_SET}\n", "upstreams", "NOT_SET is not set"),
        ("store: {url: 'sqlite:////dev/null/s.db'}\n", "store", "/dev/null/s.db cannot be created"),
        ("gateway: {upstream: 'http://a.invalid'}\n", "upstream", "cannot resolve a.invalid"),
    ],
)
def test_what_would_stop_a_gateway_is_a_problem(tmp_path: Path, text: str, what: str, problem: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    result = run("--config", str(file), "--json")
    assert result.exit_code == 1
    assert problem in told(result, what)["told"]
