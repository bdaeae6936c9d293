"""Backends: engines behind one protocol (`edgeinfer.backends.base`)."""
