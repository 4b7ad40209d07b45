"""File handling: whole files and directories, checksums and disk errors."""
