"""Tuning: which order of a kernel's loops is fastest on a device, found by measuring."""
