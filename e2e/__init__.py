"""End to end with a real language model on this machine: `make e2e-model`. Not part of `make test`."""
