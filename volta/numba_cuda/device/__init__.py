"""Volta's own runtime over the driver: devices, streams, memory, copies, launches."""
