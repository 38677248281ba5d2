"""Every engine there is keeps the contract, and the suite notices those that do not."""

from __future__ import annotations

from midfold.engines import Compressor, Noop
from midfold.testing.engines import EngineContract


class TestCompressor(EngineContract):
    engine = Compressor()


class TestNoop(EngineContract):
    engine = Noop
