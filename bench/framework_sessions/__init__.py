"""Session programs of `bench.frameworks`, one for each framework."""
