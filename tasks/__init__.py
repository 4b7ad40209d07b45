"""seqio tasks, a data set a file; all are known once they are imported."""
