"""Local disks: full ones, temporary directories and the page cache."""
