"""Object stores such as gs://: what is different there from a local disk."""
