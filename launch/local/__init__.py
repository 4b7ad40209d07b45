"""The jobs of a run as processes of this machine."""
