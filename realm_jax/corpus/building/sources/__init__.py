"""What corpora are built from: rows of files, read as documents."""
