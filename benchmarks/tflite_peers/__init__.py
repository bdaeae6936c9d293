"""Our .tflite files against those of others: see ``__main__``."""
