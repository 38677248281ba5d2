"""Gateway on a redacting store: the provider receives the original, the store has no secrets, and folds still match."""

from __future__ import annotations

from pathlib import Path

import midfold
from midfold.testing.answers import openai_json
from midfold.testing.doubles import ScriptedProvider
from support.fixtures import assistant, call, number_lines, system, user
from support.gateways import running

SECRET = "sk-" + "ant-api03-" + "Zx8" * 20
WINDOW = 16_000
POISON = b'{"role":"user","content":"poison"}'
CHANGE = "UPDATE bodies SET codec = 0, data = ? WHERE id IN (SELECT body FROM pieces)"
FORMS = {
    "our own key {}": "mfk_" + "Zx8-_" * 8 + "abc",
    "atlassian {}": "ATATT3xFfGF0" + "Zx8_-" * 34 + "=1A2B3C4D",
    "databricks {}": "dapi" + "0f1e" * 8,
    "notion {}": "ntn_" + "1234567890" + "Zx8" * 12,
    "postman {}": "PMAK-" + "0f1e2d" * 4 + "-" + "0f" * 17,
    "age {}": "AGE-SECRET-KEY-1" + "QPZRY9X8GF" * 5 + "2TVDW0S3",
    "mailgun {}": "key-" + "0f1e" * 8,
    "db:\n  user: bob\n  password: {}\n  host: db": "sesameopen",
    "密码：{}": "Zx8hunter",
    "ｐａｓｓｗｏｒｄ＝{}": "Zx9hunter",
    "GET /?q=%7B%22api_key%22%3A%22{}%22%7D": "Zx7hunter",
}


def history() -> list[dict[str, object]]:
    said = [system(), user(f"Use {SECRET} for the tests."), assistant("I will.")]
    for number in range(40):
        text = number_lines(f"line {{n}} of step {number}: nothing special happens in here", 30)
        said += call(number, "terminal", {"command": f"export KEY={SECRET} && make step-{number}"}, text)
    return [*said, user(f"Is {SECRET} still right?")]


def test_folds_are_found_again_and_originals_have_no_secret(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    heads = []
    for _ in range(2):
        with (
            midfold.open(url, redacts=True) as sessions,
            ScriptedProvider(then=lambda request: openai_json("fine")) as provider,
            running(provider.url, window=WINDOW, sessions=sessions) as gateway,
        ):
            heads.append(gateway.post("/v1/chat/completions", {"model": "gpt-4o", "messages": history()})[1])
            assert SECRET in str(provider.requests[-1].body["messages"][-1])
            (info,) = sessions.store.sessions(10)
            assert SECRET not in str(list(sessions.session(info.name).history()))
    assert [head["x-midfold-action"] for head in heads] == ["compacted", "checkpoint"]
    assert heads[0]["x-midfold-receipt"] == heads[1]["x-midfold-receipt"]
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_every_form_of_a_credential_is_kept_out_of_the_store(tmp_path: Path) -> None:
    said = history()
    said[-1:] = [user(form.format(secret)) for form, secret in FORMS.items()]
    with (
        midfold.open(f"sqlite:///{tmp_path}/s.db", redacts=True) as sessions,
        ScriptedProvider(then=lambda request: openai_json("fine")) as provider,
        running(provider.url, window=WINDOW, sessions=sessions) as gateway,
    ):
        head = gateway.post("/v1/chat/completions", {"model": "gpt-4o", "messages": said})[1]
        assert head["x-midfold-action"] == "compacted"
        assert all(secret in str(provider.requests[-1].body["messages"]) for secret in FORMS.values())
        (info,) = sessions.store.sessions(10)
        stored = str(list(sessions.session(info.name).history()))
    assert "user: bob" in stored
    assert [secret for secret in FORMS.values() if secret in stored] == []


def test_a_summary_that_was_altered_in_the_store_does_not_reach_the_provider(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    asked = {"model": "gpt-4o", "messages": history()}
    sent = []
    for number in range(2):
        with (
            midfold.open(url) as sessions,
            ScriptedProvider(then=lambda request: openai_json("fine")) as provider,
            running(provider.url, window=WINDOW, sessions=sessions) as gateway,
        ):
            if number:
                sessions.store.database.write(lambda tx: tx.connection.execute(CHANGE, (POISON,)))
            status, head, _ = gateway.post("/v1/chat/completions", asked)
            assert status == 200
            sent.append((head["x-midfold-action"], str(provider.requests[-1].body["messages"])))
    assert sent[0][0] == "compacted"
    assert sent[1][0] != "checkpoint"
    assert "poison" not in sent[1][1]
