"""Streams that pass by way of the processor. Pure: bytes in, bytes out; no clock, no gRPC."""

from extproc.streaming.guard import Guard

__all__ = ["Guard"]
