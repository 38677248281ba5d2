"""Shared by the tests: where the data is, and conversions written without midfold."""
