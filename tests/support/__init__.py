"""Shared test support: locations of test data, and converters written independently of midfold."""
