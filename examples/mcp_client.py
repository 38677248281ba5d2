"""Compact a transcript by MCP, and unfold what was folded: python examples/mcp_client.py coding-session.json"""

import asyncio
import json
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters


async def main(file: str) -> None:
    folder = Path(__file__).parent
    command = ["-m", "midfold", "mcp", "--store", "memory:", "--project", str(folder)]
    async with Client(StdioServerParameters(command=sys.executable, args=command)) as client:
        done = await client.call_tool("compact", {"file": file, "context_length": 32_000})
        found = json.loads(done.content[0].text)
        receipt = found["receipt"]
        sys.stdout.write(f"{receipt['old_tokens']} -> {receipt['new_tokens']} tokens, {receipt['fold']}\n")
        unfolded = await client.call_tool("unfold", {"handle": receipt["fold"], "session": found["session"]})
        sys.stdout.write(unfolded.content[0].text[:1_000] + "\n")


asyncio.run(main(sys.argv[1]))
