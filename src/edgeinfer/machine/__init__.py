"""Facts of the machine at hand: its processors, boards, limits, power and memory."""
