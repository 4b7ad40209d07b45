"""t5x as another engine. `make t5x` adds it: it is in no package registry."""
