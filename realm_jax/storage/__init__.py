"""Files on disks and on object stores: whole, verified, and of one process."""
