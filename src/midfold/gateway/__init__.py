"""HTTP between an agent and its provider."""
