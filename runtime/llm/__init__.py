"""Language models on the device: executor, paged cache, scheduler, sampling and their use."""
