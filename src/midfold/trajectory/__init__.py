"""Offline compression of recorded agent trajectories: thousands of runs into a token target, reproducibly."""

from midfold.trajectory.compress import Compressed, compress_record
from midfold.trajectory.job import Finished, Job, run
from midfold.trajectory.settings import Settings

__all__ = ["Compressed", "Finished", "Job", "Settings", "compress_record", "run"]
