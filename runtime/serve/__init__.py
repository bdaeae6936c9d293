"""One small server for tensors and language models, which existing clients already speak to."""
