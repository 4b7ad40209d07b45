"""A language model behind a URL as the reader: what it says of each text."""
