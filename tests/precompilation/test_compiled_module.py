"""A compiled module is read from its text, with loops times their trips."""

from pathlib import Path

import pytest

from realm_jax.precompilation import hlo
from realm_jax.precompilation.collectives import (
  Collective,
  axis_of,
  collectives,
)
from realm_jax.precompilation.cycles import estimated_cycles
from realm_jax.precompilation.traffic import memory_traffic

_TEXT = (Path(__file__).parent / "module.hlo.txt").read_text()
_MESH = {"data": 2, "fsdp": 2, "model": 2}


def test_a_loop_runs_as_often_as_the_compiler_says():
  module = hlo.parse(_TEXT)
  assert module.entry == "main"
  runs = {"main": 1, "body": 32, "condition": 32, "fused_slice": 32, "add": 0}
  assert {name: module.runs[name] for name in runs} == runs


def test_a_loop_that_only_a_run_bounds_runs_as_often_as_is_given():
  text = _TEXT.replace(', backend_config={"known_trip_count":{"n":"32"}}', "")
  assert hlo.parse(text, unknown_trips=7).runs["body"] == 7


def test_the_larger_branch_of_a_conditional_runs():
  branches = "".join(
    f"""
%{name} (x: f32[{size}]) -> f32[{size}] {{
  %x = f32[{size}]{{0}} parameter(0)
  ROOT %sum = f32[{size}]{{0}} add(%x, %x)
}}
"""
    for name, size in (("packed", 8), ("padded", 16))
  )
  attributes = "branch_computations={%packed, %padded}"
  module = hlo.parse(f"""HloModule two
{branches}
ENTRY %main (p: pred[], x: f32[8], y: f32[16]) -> f32[] {{
  %p = pred[] parameter(0)
  %x = f32[8]{{0}} parameter(1)
  %y = f32[16]{{0}} parameter(2)
  ROOT %c = f32[] conditional(%p, %x, %y), {attributes}
}}
""")
  assert module.runs == {"packed": 0, "padded": 1, "main": 1}


def test_cycles_are_those_of_all_trips():
  assert estimated_cycles(hlo.parse(_TEXT)) == 32 * (100 + 40)


def test_traffic_is_what_lies_in_memory_and_is_read_or_written():
  whole, part = 256 * 128 * 4, 8 * 128 * 4
  # A trip reads a part into the core's own memory (S(1)), and writes it back
  # in place. Then the whole is copied to the core, and its sum is written.
  expected = 32 * (part + part) + whole + whole
  assert memory_traffic(hlo.parse(_TEXT)) == expected


def test_a_collective_has_its_axis_and_its_bytes():
  found = collectives(hlo.parse(_TEXT), _MESH)
  assert found == [Collective("all-reduce", "data", 256 * 128 * 4, 1)]


def test_collectives_that_share_a_channel_are_told_apart():
  again = "%all = f32[256,128]{1,0:T(8,128)} all-reduce"
  other = _TEXT.replace(
    f"  ROOT {again}", f"  {again.replace('%all ', '%one ')}"
  ).replace(
    "to_apply=%add\n}",
    "to_apply=%add\n"
    f"  ROOT {again}(%one), channel_id=1, replica_groups=[4,2]<=[8]\n}}",
  )
  found = collectives(hlo.parse(other), _MESH)
  assert [(c.axis, c.count) for c in found] == [("data", 1), ("model", 1)]


@pytest.mark.parametrize(
  ("groups", "axis"),
  [
    ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", "model"),
    ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", "data"),
    ("replica_groups={{0,1,2,3},{4,5,6,7}}", "fsdp×model"),
    ("replica_groups={}", "data×fsdp×model"),
    ("replica_groups=[4,2]<=[8]", "model"),
    ("replica_groups=[2,4]<=[2,2,2]T(1,0,2)", "data×model"),
    ("replica_groups=mesh['a'=2,'b'=2,'c'=2] {'b'}", "fsdp"),
    ("replica_groups=mesh['a'=4,'c'=2] {'a'}", "data×fsdp"),
    ("replica_groups=mesh['a'=8] {'a':(2)2}", "fsdp"),
    ("replica_groups=mesh['a'=8] {'a':(1)2}", "data"),
    ("source_target_pairs={{0,2},{2,0},{1,3},{3,1}}", "fsdp"),
    ("replica_groups={{0},{1}}", "other"),
  ],
)
def test_groups_of_devices_lie_along_axes_of_the_mesh(groups: str, axis: str):
  assert axis_of(f"channel_id=3, {groups}, dimensions={{0}}", _MESH) == axis


def test_a_text_without_an_entry_is_refused():
  with pytest.raises(ValueError, match="no ENTRY"):
    hlo.parse("HloModule nothing\n")
