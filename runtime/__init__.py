"""The runtime: loads a bundle, picks a backend by measurement, runs it. Imports no converter."""
