"""midfold inside other agents and frameworks: one folder each, imported only by those who use it."""
