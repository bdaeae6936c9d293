"""The bundle (`model.edge`): the one thing that the converter writes and the runtime reads."""
