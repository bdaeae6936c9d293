"""Sessions of edgeinfer beside the engines that others use: see ``__main__``."""
