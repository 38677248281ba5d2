"""Test doubles and hypothesis strategies, for midfold's own tests and for those of its users.

Here are the doubles that need nothing but midfold; `strategies` needs hypothesis, and `engines` pytest as well.
"""

from midfold.testing.automatic_cache import AutomaticCache, BreakpointCache
from midfold.testing.doubles import FakeClock, Request, ScriptedProvider, ScriptedSummarizer, ScriptEnded, refusing_url
from midfold.testing.prefix_cache import PrefixCache, Refused

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
