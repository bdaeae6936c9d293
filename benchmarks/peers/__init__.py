"""Sessions of edgeinfer next to the engines that others use: see ``__main__``."""
