"""The programs that the gateway benchmark runs beside each other."""
