"""What the tests of refreshes share."""

import pytest

from realm_jax.training.refresh import schedule


@pytest.fixture
def short_waits(monkeypatch):
  """Waits for generations end at once."""
  monkeypatch.setattr(schedule, "_POLL_SECONDS", 0.0)
  monkeypatch.setattr(schedule, "_FRESHER_SECONDS", 0.1)
