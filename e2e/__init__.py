"""End-to-end tests with a real local language model: `make e2e-model`. Not part of `make test`."""
