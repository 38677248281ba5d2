"""The sessions of `bench.frameworks`, one program for each framework."""
