"""Measuring and offline work: retention, replay under other policies, recorded trajectories. Imported by `cli` only."""
