"""Forebay: an Envoy external processor that decides; Envoy carries."""
