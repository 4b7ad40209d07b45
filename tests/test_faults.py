"""Each fault has the tests that tests/FAULTS.md names for it."""

import re


def test_every_named_test_of_a_fault_is_there(project_dir):
  text = (project_dir / "tests" / "FAULTS.md").read_text()
  named = re.findall(r"`(tests/[^`]+\.py)::(test_\w+)`", text)
  assert named
  missing = [
    f"{path}::{name}"
    for path, name in named
    if not (project_dir / path).exists()
    or f"\ndef {name}(" not in (project_dir / path).read_text()
  ]
  assert not missing
