"""``edgeinfer tune``: faster schedules for a model's hottest kernels."""
