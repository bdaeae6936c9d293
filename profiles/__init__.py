"""Device profiles: one TOML file a device, read into frozen dataclasses."""
