"""How close an output is to the expected one, and the budgets that decide whether it is close enough.

One table serves the conversion gate and the re-check on the device.
"""

from __future__ import annotations
