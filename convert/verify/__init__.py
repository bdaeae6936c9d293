"""Verification: each artifact is run against two oracles on real inputs, before it may ship."""
