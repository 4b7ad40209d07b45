"""Building and updating: from documents to a corpus directory."""
