"""The runtime: the gateway, arrays, memory, devices and policy."""
