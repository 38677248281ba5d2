"""Helpers shared by the tests: data locations, and conversions written without midfold."""
