"""A served language model as the reader: log-likelihoods of texts."""
