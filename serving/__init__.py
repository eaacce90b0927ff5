"""What runs behind the gateway: the simulated vLLM and how to start the real one."""
