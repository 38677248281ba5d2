"""Programs that the gateway benchmark compares."""
