"""How a run starts or continues from a checkpoint, and what it saves."""
