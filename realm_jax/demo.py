"""Runs the demo of a clone, `python -m experiments.demo`, as `make demo` does.

An installed package has neither the demo nor the world that it generates.
"""

import runpy
import sys
from pathlib import Path

_CLONE = Path(__file__).resolve().parent.parent


def main() -> None:
  """Runs the demo, or says where it is."""
  if not (_CLONE / "experiments").is_dir():
    sys.exit(
      "demo: the installed package has no demo; clone the repository of "
      "realm_jax, and run `make demo` there"
    )
  sys.path.insert(0, str(_CLONE))
  runpy.run_module("experiments.demo", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
  main()
