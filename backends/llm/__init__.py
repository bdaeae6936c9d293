"""Language models: tapes of compiled kernels, run by a team of threads."""
