"""Install context engines as plugin directories next to a configuration file, as users do."""

from __future__ import annotations

from pathlib import Path

SIGNED = "signed by the notary"
NOTARY = f"""
from pathlib import Path
import msgspec
from midfold import Compressor, ToolSpec

with Path(__file__).with_name("imports").open("a") as file:
    file.write("x")

TEXT = {{"type": "object", "properties": {{"handle": {{"type": "string"}}}}, "required": ["handle"]}}


class Notary(Compressor):
    name = "notary"

    def compress(self, request):
        outcome = yield from super().compress(request)
        receipt = msgspec.structs.replace(outcome.receipt, notices=("{SIGNED}", *outcome.receipt.notices))
        return msgspec.structs.replace(outcome, receipt=receipt)

    def tools(self):
        names = ("notary_count", "notary_read", "context_search")
        return tuple(ToolSpec(name, "About what was folded.", TEXT if name == "notary_read" else {{"type": "object"}})
                     for name in names)

    def call_tool(self, name, arguments, archive):
        if name == "notary_count":
            return f"{{len(archive)}} handles, the first is {{next(iter(archive), None)}}"
        return "\\n".join(message.text for message in archive[arguments["handle"]])


engine = Notary
"""
BROKEN = """
from pathlib import Path

with Path(__file__).with_name("tries").open("a") as file:
    file.write("x")

import nothing_like_it
"""


def install(folder: Path, name: str, code: str, *, configured: str | None = None) -> Path:
    """Write the plugin and a config.yaml that names it; return the path of config.yaml."""
    plugin = folder / "plugins" / "context_engine" / name
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text(code)
    file = folder / "config.yaml"
    file.write_text(f"context:\n  engine: {configured or name}\n")
    return file
