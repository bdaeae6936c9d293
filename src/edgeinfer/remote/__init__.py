"""Commands that run on a device reached by ssh, with this very version of the runtime."""
