"""Readers: what brings the bytes of windows from where they lie to a batch."""
