"""One resolution of `context.engine` for every way to run a compaction, and its notices in every receipt."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import midfold
from midfold.adapters.hermes import HermesEngine
from midfold.cli.main import main
from midfold.compaction.receipt import Receipt
from midfold.config import Config
from midfold.engines import Compressor
from midfold.plugins import configured_engine
from support.engine_plugins import BROKEN, NOTARY, SIGNED, install
from support.gateways import running, settings
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

TALK: list[Any] = [{"role": "user", "content": "Go."}]
for number in range(60):
    TALK += [
        {"role": "assistant", "content": f"Step {number}: " + "I look at it closely. " * 20},
        {"role": "user", "content": f"Result {number}: " + "all is well here. " * 20},
    ]
TALK.append({"role": "assistant", "content": "Done."})
WINDOW = 8_000


def by_compact(config: Config, folder: Path) -> Receipt:
    return midfold.compact(TALK, config=config, context_length=WINDOW).receipt


def by_host(config: Config, folder: Path) -> Receipt:
    host = midfold.EngineHost(config=config, context_length=WINDOW)
    host.compress(TALK)
    assert host.last is not None
    return host.last


def by_session(config: Config, folder: Path) -> Receipt:
    with midfold.open("memory:", config=config) as sessions:
        session = sessions.session("a", context_length=WINDOW)
        session.append(TALK)
        return session.compact().receipt


def by_gateway(config: Config, folder: Path) -> Receipt:
    import msgspec

    with RulesProvider(lambda request: Turn("Fine."), window=WINDOW) as provider:
        own = settings(provider.url, WINDOW, mode="manage")
        own = msgspec.structs.replace(own, context=config.context, folder=config.folder)
        with running(provider.url, config=own) as gateway:
            body = {"model": "gpt-4o", "messages": [*TALK, {"role": "user", "content": "And now?"}]}
            gateway.post("/v1/chat/completions", body)
            (info,) = gateway.sessions.all()
            return gateway.sessions.session(info.name).receipts()[0].receipt


def by_hermes(config: Config, folder: Path) -> Receipt:
    engine = HermesEngine(config=config)
    engine.update_model("gpt-4o", WINDOW)
    engine.compress(TALK, force=True)
    receipt = engine._conversation.last
    assert receipt is not None
    return receipt


def by_command(config: Config, folder: Path) -> Receipt:
    import msgspec

    (folder / "talk.json").write_text(json.dumps(TALK))
    command = ("compact", str(folder / "talk.json"), "--json", "--context-length", str(WINDOW))
    told = subprocess.run(
        [sys.executable, "-m", "midfold", *command, "--config", str(folder / "config.yaml")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("CONTEXT ENGINE NOT USED" in told.stderr) == configured_engine(config).fell_back
    return msgspec.convert(json.loads(told.stdout)["receipt"], Receipt)


FACES = [by_compact, by_host, by_session, by_gateway, by_hermes, by_command]
Face = Callable[[Config, Path], Receipt]


@pytest.mark.parametrize("face", FACES)
def test_every_face_runs_the_engine_in_the_folder_of_the_file_that_was_loaded(face: Face, tmp_path: Path) -> None:
    config = midfold.load_config(install(tmp_path, "notary", NOTARY)).config
    receipt = face(config, tmp_path)
    assert receipt.status == "compacted"
    assert receipt.notices[0] == SIGNED


@pytest.mark.parametrize("face", FACES)
def test_every_face_says_in_its_receipt_that_an_engine_could_not_be_used(face: Face, tmp_path: Path) -> None:
    config = midfold.load_config(install(tmp_path, "notary", NOTARY, configured="notar")).config
    receipt = face(config, tmp_path)
    assert receipt.status == "compacted"
    assert receipt.notices[0].startswith('CONTEXT ENGINE NOT USED: "notar": there is no engine of that name')
    assert "notary" in receipt.notices[0]


def test_an_engine_that_is_given_wins_over_the_settings(tmp_path: Path) -> None:
    config = midfold.load_config(install(tmp_path, "notary", NOTARY)).config
    receipt = midfold.compact(TALK, config=config, engine=Compressor(), context_length=WINDOW).receipt
    assert SIGNED not in receipt.notices
    assert type(midfold.EngineHost(Compressor(), config=config).engine) is Compressor
    assert not (tmp_path / "plugins/context_engine/notary/imports").exists()


def test_a_plugin_is_imported_once_and_a_broken_one_is_not_tried_for_every_session(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    config = midfold.load_config(install(good, "notary", NOTARY)).config
    broken = midfold.load_config(install(bad, "broken", BROKEN)).config
    for known in (config, broken):
        with midfold.open("memory:", config=known) as sessions:
            for number in range(50):
                sessions.session(f"s{number}")
    assert (good / "plugins/context_engine/notary/imports").read_text() == "x"
    assert (bad / "plugins/context_engine/broken/tries").read_text() == "x"


def test_an_engine_registered_later_is_found_by_settings_that_did_not_find_it() -> None:
    config = Config(context=midfold.load_config(environ={}, overrides={"context.engine": "late"}).config.context)

    class Late(Compressor):
        name = "late"

    assert configured_engine(config).fell_back
    take_back = midfold.register_context_engine(Late)
    assert type(configured_engine(config).engine) is Late
    take_back()
    assert configured_engine(config).fell_back


def test_doctor_crosses_out_an_engine_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = install(tmp_path, "broken", BROKEN)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--config", str(file), "--json"])
    findings = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert ended.value.code == 1
    assert findings["engine"]["status"] == "problem"
    assert "nothing_like_it" in findings["engine"]["told"]


def test_serve_and_agent_say_on_standard_error_that_the_engine_cannot_be_used(tmp_path: Path) -> None:
    file = str(install(tmp_path, "broken", BROKEN))
    endpoint = ("--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--store", "memory:")
    for command in (("serve", "--host", "192.0.2.1", "--store", "memory:"), ("agent", "run", "x", *endpoint)):
        told = subprocess.run(
            [sys.executable, "-m", "midfold", *command, "--config", file],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert 'CONTEXT ENGINE NOT USED: "broken"' in told.stderr


@pytest.mark.parametrize(
    ("engine", "code", "told"), [("raising", 1, "ZeroDivisionError"), ("noop", 0, "never compacts")]
)
def test_doctor_proves_a_compaction_with_the_engine_that_is_configured(
    engine: str, code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raising = (
        "from midfold import Noop\n\n\nclass Raising(Noop):\n    name = 'raising'\n    compress = lambda *_: 1 / 0\n"
    )
    file = install(tmp_path, "raising", f"{raising}\n\nengine = Raising\n", configured=engine)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--config", str(file), "--json"])
    findings = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert (ended.value.code, findings["engine"]["status"]) == (code, "ok")
    assert told in findings["compaction"]["told"]
