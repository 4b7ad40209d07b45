"""What stands on disk: manifests, vectors, publication and retention."""
