"""Other ways to keep a conversation in its window, for the same policy and the same tools.

`window` drops the oldest messages at the threshold. `Hermes` is the released compressor, in its own process and
with
its own threshold.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from itertools import pairwise
from types import TracebackType
from typing import Any

from bench.peers import HERMES, environment
from midfold.agent import shapes
from midfold.agent.tools import Toolbox
from midfold.transcript import jsonio
from midfold.transcript.document import read
from midfold.transcript.laws import legal_cuts

Messages = list[dict[str, Any]]
Shrink = Callable[[Messages, int], Messages]


class PlainLoop:
    """Agent loop over a plain list; `shrink` is called before each request, with its exact size."""

    def __init__(self, policy: Any, toolbox: Toolbox, system: str, shrink: Shrink) -> None:
        self.policy, self.toolbox, self.shrink = policy, toolbox, shrink
        self.tools = [spec.definition("openai-chat") for spec in toolbox.specs]
        self.messages: Messages = [{"role": "system", "content": system}]
        self.compactions = 0

    def run(self, task: str) -> str:
        self.messages.append(shapes.user(task))
        while True:
            size = self.policy.tokens(self.messages, self.tools)
            smaller = self.shrink(self.messages, size)
            self.compactions += smaller is not self.messages
            self.messages = smaller
            body = jsonio.encode({"messages": self.messages, "tools": self.tools})
            answer = self.policy.ask(body, None, None)
            self.messages.append(answer.message)
            if not answer.calls:
                return str(answer.text)
            done = [self.toolbox.run(call) for call in answer.calls]
            self.messages += shapes.results("openai", done)


def sliding(policy: Any, threshold: int, landing: int) -> Shrink:
    """Keep the system prompt and, at the threshold, as many of the newest messages as fit into `landing`."""

    def shrink(messages: Messages, size: int) -> Messages:
        if size < threshold:
            return messages
        talk = messages[1:]
        left = size
        cuts = legal_cuts(read(talk).messages)
        for start, cut in pairwise(cuts[:-1]):
            left -= policy.tokens(talk[start:cut]) - policy.tokens(())
            if left < landing:
                return [messages[0], *talk[cut:]]
        return messages

    return shrink


PEER = """
import json, sys, types
import agent.context_compressor as theirs
question = json.loads(sys.stdin.readline())
def reply(**_):
    message = types.SimpleNamespace(content=question["summary"])
    return types.SimpleNamespace(choices=[types.SimpleNamespace(message=message, finish_reason="stop")], usage=None)
theirs.call_llm = reply
engine = theirs.ContextCompressor(
    model="gpt-4o", threshold_percent=0.5, config_context_length=question["window"], quiet_mode=True
)
print(json.dumps({"threshold": engine.threshold_tokens}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    engine.update_from_response({"prompt_tokens": asked["tokens"], "completion_tokens": 0})
    if not engine.should_compress(asked["tokens"]):
        print("null", flush=True)
    else:
        print(json.dumps(engine.compress(asked["messages"], current_tokens=asked["tokens"])), flush=True)
"""


class Hermes:
    """Hermes' compressor in its own process; a context manager, called by `shrink`."""

    def __init__(self, window: int, summary: str) -> None:
        self._process = subprocess.Popen(
            [str(environment(HERMES)), "-c", PEER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.threshold: int = self._asked({"window": window, "summary": summary})["threshold"]

    def _asked(self, question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"{HERMES} ended")
        return json.loads(answer)

    def shrink(self, messages: Messages, size: int) -> Messages:
        if size < self.threshold:
            return messages
        answer = self._asked({"messages": messages, "tokens": size})
        return messages if answer is None or answer == messages else answer

    def __enter__(self) -> Hermes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
