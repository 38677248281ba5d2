"""Test doubles and hypothesis strategies, for midfold's own tests and for those of its users.

Here are the doubles that need nothing but midfold; `strategies` needs hypothesis, and `engines` pytest as well.
"""

from midfold.testing.automatic_cache import AutomaticCache, BreakpointCache
from midfold.testing.doubles import FakeClock, ScriptedSummarizer, ScriptEnded
from midfold.testing.prefix_cache import PrefixCache, Refused
from midfold.testing.provider import Request, ScriptedProvider, refusing_url

__all__ = [
    "AutomaticCache",
    "BreakpointCache",
    "FakeClock",
    "PrefixCache",
    "Refused",
    "Request",
    "ScriptEnded",
    "ScriptedProvider",
    "ScriptedSummarizer",
    "refusing_url",
]
