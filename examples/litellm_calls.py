"""Calls through LiteLLM that stay inside the window: pip install 'midfold[litellm]'

OPENAI_API_KEY=... python examples/litellm_calls.py README.md CHANGELOG.md
"""

import sys
from pathlib import Path

from midfold.adapters.litellm import MidfoldCallback

folding = MidfoldCallback()
messages = [{"role": "user", "content": "I show you files. Say in one line what each is."}]
for path in sys.argv[1:] or ["README.md"]:
    messages.append({"role": "user", "content": Path(path).read_text(encoding="utf-8", errors="replace")})
    answer = folding.completion(model="gpt-4o", messages=messages).choices[0].message
    messages.append({"role": "assistant", "content": answer.content})
    sys.stdout.write(f"{path}: {answer.content}\n")
