"""Lines that a user types, or that another program writes."""

import sys
from collections.abc import Iterator


def prompted_lines(wanted: str) -> Iterator[str]:
  """Yields lines of the terminal, or of the standard input.

  On a terminal an empty line ends them. Elsewhere empty lines are left out,
  and each line is printed, so that what follows can be told apart.

  Args:
    wanted: Name of what a line is, for the prompt.
  """
  is_terminal = sys.stdin.isatty()
  while True:
    try:
      line = input(f"{wanted} (empty to leave): " if is_terminal else "")
    except EOFError:
      return
    if line.strip():
      if not is_terminal:
        print(f"# {line}")
      yield line
    elif is_terminal:
      return
