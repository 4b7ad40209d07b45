"""Patterns: those of CuratedTREC as Python matches them, bounded in time."""

from realm_jax.text.patterns import Pattern

SLOW = "(a|aa)+$"


def test_a_slow_pattern_is_stopped_and_not_searched_again():
  slow = Pattern(SLOW)
  assert slow.spans("aaa")
  assert not slow.occurs("a" * 60 + "b")
  assert "takes too long" in slow.problem
  assert not slow.spans("aaa")


def test_spans_leave_out_white_space_and_nothing():
  found = Pattern(r"\s*\w*\s*").spans("ab  cd\n  ")
  assert [(s.start, s.stop) for s in found] == [(0, 2), (4, 6)]
