"""From documents to a corpus directory and its later versions."""
