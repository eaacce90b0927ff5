"""What runs behind the gateway: the simulated vLLM (and later profiles of the real one)."""
