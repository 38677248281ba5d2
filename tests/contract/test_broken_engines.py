"""Broken context engines are reported, and no data is lost, through every API."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import midfold
from midfold.cli.main import main
from midfold.config import Config
from midfold.transcript.laws import violations
from support.build import SECRET, work
from support.engine_plugins import install
from support.fixtures import assistant, user
from support.gateways import running, settings
from support.provider_replies import Turn
from support.rules_provider import RulesProvider
from support.terminal import CTRL_D, Terminal

WINDOW = 8_000
TALK = [user("Go."), assistant("Yes."), *work(0, 60), user("And now?"), assistant("Nearly done.")]
TOP = "import msgspec\nfrom midfold import Compressor, Pressure\n\n\nclass Bad(Compressor):\n    name = 'bad'\n\n"
END = "\n\nengine = Bad\n"
RAISES = f"        raise ZeroDivisionError('with {SECRET}')\n"
REFUSES = f"        from midfold.errors import PluginError\n\n        raise PluginError('no answer with {SECRET}')\n"
LATER = "        made = yield from super().compress(request)\n"
GIVES = LATER + "        return msgspec.structs.replace(made, messages={})\n"
UNUSABLE = {
    "import": ("import nothing_like_it\n", "No module named 'nothing_like_it'"),
    "syntax": ("def (:\n", "SyntaxError"),
    "nothing": ("x = 1\n", "defines neither engine nor register"),
    "no engine": ("engine = 5\n", "a value of type int"),
    "making it": (f"{TOP}    def __init__(self):\n{RAISES}{END}", "ZeroDivisionError"),
}
FAILING = {
    "should_compress raises": ("    def should_compress(self, request):\n" + RAISES, "ZeroDivisionError"),
    "should_compress gives words": ("    def should_compress(self, request):\n        return 'soon'\n", "of type str"),
    "should_compress gives nothing": ("    def should_compress(self, request):\n        pass\n", "of type NoneType"),
    "compress raises": ("    def compress(self, request):\n" + RAISES, "ZeroDivisionError"),
    "compress raises in our words": ("    def compress(self, request):\n" + REFUSES, "no answer with"),
    "compress raises at its end": ("    def compress(self, request):\n" + LATER + RAISES, "ZeroDivisionError"),
    "compress gives nothing": ("    def compress(self, request):\n        pass\n", "expected a generator"),
    "compress asks for words": (
        "    def compress(self, request):\n        yield 'what?'\n",
        "a SummaryRequest",
    ),
    "its outcome is nothing": ("    def compress(self, request):\n" + LATER, "expected an Outcome"),
    "its messages are none": ("    def compress(self, request):\n" + GIVES.format("()"), "returned no messages"),
    "its messages are words": ("    def compress(self, request):\n" + GIVES.format("('a',)"), "not a tuple of Message"),
    "its results are gone": (
        "    def compress(self, request):\n"
        + GIVES.format("tuple(message for message in request.messages if message.role != 'tool')"),
        "providers reject: messages[2] has a call without a result",
    ),
}
Engines = pytest.mark.parametrize(("code", "why"), FAILING.values(), ids=FAILING)


def load(folder: Path, code: str, **more: Any) -> Config:
    return midfold.load_config(install(folder, "bad", f"{TOP}{code}{END}", **more)).config


def is_told(text: str, why: str) -> bool:
    return 'CONTEXT ENGINE FAILED: "bad"' in text and why in text and SECRET not in text


@Engines
@pytest.mark.parametrize("force", [False, True])
def test_compact_folds_without_it_or_leaves_every_message(code: str, why: str, force: bool, tmp_path: Path) -> None:
    result = midfold.compact(TALK, config=load(tmp_path, code), context_length=WINDOW, force=force)
    asks_when = code.startswith("    def should_compress")
    assert result.changed is asks_when
    assert any(is_told(text, why) for text in result.receipt.notices) is not (force and asks_when)
    if asks_when:
        assert violations(result.transcript) == ()
        return
    assert result.receipt.status == "aborted"
    assert is_told(result.receipt.reason, why)
    assert "every message is unchanged" in result.receipt.reason
    assert all(mine is theirs for mine, theirs in zip(result.messages, TALK, strict=True))


@Engines
def test_hosts_and_sessions_go_on_and_a_failing_engine_is_not_tried_at_every_turn(
    code: str, why: str, tmp_path: Path
) -> None:
    config = load(tmp_path, code)
    host = midfold.EngineHost(config=config, context_length=WINDOW)
    host.append(TALK)
    assert host.should_compress()
    given = host.compress(TALK)
    assert host.last is not None
    assert is_told(host.last.notices[0], why)
    with midfold.open("memory:", config=config) as sessions:
        session = sessions.session("s", context_length=WINDOW)
        session.append(TALK)
        assert is_told(session.compact().receipt.notices[0], why)
        assert session.history().messages == TALK
        if given is TALK:
            assert session.view().messages == TALK
            session.compact()
            assert not session.should_compact(), "two strikes"


@Engines
def test_the_gateway_answers_and_logs_it_once(
    code: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load(tmp_path, code)
    with RulesProvider(lambda request: Turn("Fine."), window=64_000) as provider:
        own = msgspec.structs.replace(
            settings(provider.url, WINDOW, mode="manage"), context=config.context, folder=config.folder
        )
        with running(provider.url, config=own) as gateway, caplog.at_level(logging.ERROR, "midfold.gateway"):
            body = {"model": "gpt-4o", "messages": [*TALK, user("Go on.")]}
            for _ in range(2):
                status, _, _ = gateway.post("/v1/chat/completions", body)
                assert status == 200
        asked = [request.body["messages"] for request in provider.requests]
    assert len(asked) == 2
    assert all(messages[-1] == user("Go on.") for messages in asked)
    if not code.startswith("    def should_compress"):
        assert asked == [body["messages"]] * 2
    told = [record.getMessage() for record in caplog.records if "CONTEXT ENGINE FAILED" in record.getMessage()]
    assert told
    assert len(told) == len(set(told))
    assert all(is_told(text, why) for text in told)


@Engines
def test_the_commands_say_it_on_standard_error_and_doctor_crosses_it_out(
    code: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(tmp_path, code)
    file, talk = str(tmp_path / "config.yaml"), tmp_path / "talk.json"
    talk.write_text(json.dumps(TALK))
    with pytest.raises(SystemExit) as ended:
        main(["compact", str(talk), "--json", "--context-length", str(WINDOW), "--config", file])
    out, err = capsys.readouterr()
    assert ended.value.code in (None, 0)
    assert is_told(err, why)
    assert json.loads(out)["messages"]
    if "providers reject" in why:
        return
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--config", file, "--json"])
    findings = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert ended.value.code == 1
    assert findings["compaction"]["status"] == "problem"
    assert is_told(findings["compaction"]["told"], why)


@pytest.mark.parametrize("tools", ["return [1]", "1 / 0"])
def test_doctor_crosses_out_an_engine_whose_tools_cannot_be_offered(
    tools: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(tmp_path, f"    def tools(self):\n        {tools}\n")
    with pytest.raises(SystemExit):
        main(["doctor", "--config", str(tmp_path / "config.yaml"), "--json"])
    told = [finding for finding in json.loads(capsys.readouterr().out) if finding["what"] == "engine"]
    assert [finding["status"] for finding in told] == ["problem"]
    assert "omitted" in told[0]["told"]


@pytest.mark.parametrize(("code", "why"), UNUSABLE.values(), ids=UNUSABLE)
def test_one_that_cannot_be_used_is_replaced_by_the_built_in_and_everybody_is_told(
    code: str, why: str, tmp_path: Path
) -> None:
    config = midfold.load_config(install(tmp_path, "bad", code)).config
    result = midfold.compact(TALK, config=config, context_length=WINDOW)
    assert result.receipt.status == "compacted"
    assert 'CONTEXT ENGINE NOT USED: "bad"' in result.receipt.notices[0]
    assert why in result.receipt.notices[0]
    assert SECRET not in str(result.receipt)


@pytest.mark.parametrize("broken", ["should_compress raises", "compress raises"])
def test_chat_says_it_and_goes_on(broken: str, tmp_path: Path) -> None:
    load(tmp_path, FAILING[broken][0])
    with RulesProvider(lambda request: Turn("word " * 3_000), window=64_000) as provider:
        place = ("--base-url", f"{provider.url}/v1", "--model", "scripted", "--context-length", str(WINDOW))
        command = (
            sys.executable,
            "-m",
            "midfold",
            "chat",
            *place,
            "--local",
            "--config",
            str(tmp_path / "config.yaml"),
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MIDFOLD_")}
        own = {**kept, "HOME": str(tmp_path), "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}
        with Terminal(command, folder=tmp_path, environment=own) as terminal:
            terminal.wait_for("> ")
            for number in range(3):
                terminal.type(f"Ask {number}.")
                terminal.wait_for("compactions")
                terminal.wait_for("> ")
            terminal.press(CTRL_D)
            assert terminal.ended() == 0
            assert is_told(terminal.shown.replace("\r\n", " "), "ZeroDivisionError")
        last = provider.requests[-1].body["messages"]
    assert [message["content"] for message in last if message["role"] == "user"][-1] == "Ask 2."
