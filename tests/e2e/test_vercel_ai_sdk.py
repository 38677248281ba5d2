"""Vercel's AI SDK through the gateway: both providers, whole and streamed, with a base URL with or without /v1."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import pytest

from bench.peers import HOME
from midfold.testing import answers
from midfold.testing.doubles import Request, ScriptedProvider
from support.data import need
from support.gateways import running
from support.provider_replies import Turn
from support.real_clients import install_npm
from support.rules_provider import RulesProvider

PACKAGES = ("ai@7.0.173", "@ai-sdk/anthropic@4.0.104", "@ai-sdk/openai@4.0.118", "zod@4.6.7")
WINDOW = 32_768
STEPS = 40
TASK = "Look into every module and report. Never touch legacy/."
SCRIPT = """
import { generateText, streamText, tool, stepCountIs } from "ai";
import { anthropic } from "@ai-sdk/anthropic";
import { openai } from "@ai-sdk/openai";
import { z } from "zod";
const [provider, model, mode, task] = process.argv.slice(2);
const models = { anthropic: () => anthropic(model), responses: () => openai(model), chat: () => openai.chat(model) };
const look = tool({
  description: "Look into a module.",
  inputSchema: z.object({ number: z.number() }),
  execute: async ({ number }) =>
    Array.from({ length: 90 }, (_, line) => `module ${number}, line ${line}: nothing is wrong with it`).join("\\n"),
});
const options = {
  model: models[provider](), prompt: task, tools: { look }, stopWhen: stepCountIs(99),
  maxOutputTokens: 1000, maxRetries: 0, providerOptions: { openai: { store: false } },
};
if (mode === "whole") {
  const made = await generateText(options);
  console.log(JSON.stringify({ text: made.text, steps: made.steps.length }));
} else {
  const made = streamText({ ...options, onError: ({ error }) => { throw error; } });
  let text = "";
  for await (const piece of made.textStream) text += piece;
  console.log(JSON.stringify({ text: await made.text, steps: (await made.steps).length, streamed: text.length }));
}
"""
MODELS = {"anthropic": "claude-sonnet-4-5", "responses": "gpt-4o", "chat": "gpt-4o"}
PATHS = {"anthropic": "/messages", "responses": "/responses", "chat": "/chat/completions"}


def run(provider: str, mode: str, base: str) -> dict[str, Any]:
    """Run the script in the folder of the packages and return its output."""
    need(shutil.which("node"), "there is no node here")
    folder = HOME / "npm" / "ai-sdk"
    install_npm(folder, PACKAGES)
    (folder / "agent.mjs").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        ["node", "agent.mjs", provider, MODELS[provider], mode, TASK],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "ANTHROPIC_BASE_URL": base,
            "OPENAI_BASE_URL": base,
            "ANTHROPIC_API_KEY": "k",
            "OPENAI_API_KEY": "k",
            "AI_SDK_LOG_WARNINGS": "false",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    printed: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return printed


class VersionedProvider(RulesProvider):
    """Provider with routes under /v1 only."""

    def _answer(self, request: Request) -> answers.Answer:
        if not request.path.startswith("/v1/"):
            return answers.error(404, f"unknown path {request.path}", "not_found_error")
        return super()._answer(request)


@pytest.mark.parametrize("mode", ["whole", "streamed"])
@pytest.mark.parametrize("provider", MODELS)
@pytest.mark.parametrize("base", ["", "/v1"])
def test_an_agent_of_the_ai_sdk_runs_through_folds(provider: str, mode: str, base: str) -> None:
    asked = 0

    def model(request: Request) -> Turn:
        nonlocal asked
        asked += 1
        if asked > STEPS:
            return Turn("All modules are fine.")
        return Turn(f"Step {asked}.", ((f"call_{asked:04}", "look", {"number": asked}),))

    with VersionedProvider(model, window=WINDOW) as upstream, running(upstream.url, window=WINDOW) as gateway:
        printed = run(provider, mode, gateway.url + base)
        folds = len({account.receipt for account in gateway.accounts} - {None})
    assert (printed["text"], printed["steps"]) == ("All modules are fine.", STEPS + 1)
    assert upstream.rejected == []
    assert len(upstream.served) == STEPS + 1
    assert folds >= 1
    assert TASK in json.dumps(upstream.served[-1].body)
    unversioned = [request.path for request in upstream.requests if not request.path.startswith("/v1/")]
    assert unversioned == ([] if base else [PATHS[provider]]), "the missing route is asked for once"


BODY = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]}


def test_a_route_that_the_upstream_has_is_asked_for_as_the_client_wrote_it() -> None:
    said = answers.value({"type": "message", "content": []})
    script = [said, answers.error(404, "no such model"), said]
    with ScriptedProvider(script) as provider, running(provider.url) as gateway:
        statuses = [gateway.post("/messages", BODY)[0] for _ in range(3)]
    assert statuses == [200, 404, 200]
    assert [request.path for request in provider.requests] == ["/messages"] * 3


def test_the_version_is_not_doubled_and_the_query_stays() -> None:
    missing, said = answers.error(404, "no such route"), answers.value({"type": "message", "content": []})
    with ScriptedProvider([said, missing, said, said]) as provider:
        with running(f"{provider.url}/v1") as gateway:
            assert gateway.post("/messages", BODY)[0] == 200
        with running(f"{provider.url}/anthropic") as gateway:
            assert [gateway.post("/messages?beta=true", BODY)[0] for _ in range(2)] == [200, 200]
    paths = [request.path for request in provider.requests]
    assert paths == ["/v1/messages", "/anthropic/messages?beta=true", *["/anthropic/v1/messages?beta=true"] * 2]
