"""Integrations with other agents and frameworks; each is imported only by its users."""
