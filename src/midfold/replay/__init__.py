"""Recorded sessions, played again under a policy and a provider's prices: what would it have cost, and kept?

from midfold.replay import BUILT_IN, replay
result = replay(["sessions.jsonl"], policies=BUILT_IN.values(), windows=[64_000])
"""

from midfold.replay.policy import BUILT_IN, Policy, load_policy
from midfold.replay.run import Replay, replay

__all__ = ["BUILT_IN", "Policy", "Replay", "load_policy", "replay"]
