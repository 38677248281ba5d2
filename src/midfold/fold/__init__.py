"""The fold."""
