"""Test doubles and hypothesis strategies, for midfold's own tests and for those of its users."""
