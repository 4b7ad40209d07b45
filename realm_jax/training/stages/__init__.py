"""The stages of training: their candidates, their batches and their losses."""
