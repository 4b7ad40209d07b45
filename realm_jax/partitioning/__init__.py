"""The mesh, the logical axes and the processes of a run."""
