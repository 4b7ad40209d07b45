"""Files and directories that appear complete, or not at all."""
