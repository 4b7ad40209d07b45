"""Byte strings come out of a numpy pickle, and nothing else does."""

import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.block_records import BlockRecords

PROTOCOLS = (2, 3, 4, 5)


def as_array(records):
  array = np.empty(len(records), object)
  array[:] = records
  return array


def write(path, pickled: bytes, shape, *, descr="|O") -> BlockRecords:
  """A .npy file of objects, written from the format's description."""
  header = repr({"descr": descr, "fortran_order": False, "shape": shape})
  header = header.ljust(118 - 1) + "\n"
  magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118)
  path.write_bytes(magic + header.encode() + pickled)
  return BlockRecords(path)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
  return tmp_path_factory.mktemp("records") / "block_records.npy"


@given(
  records=st.lists(
    st.binary(max_size=6)
    | st.integers(250, 260).map(lambda size: b"\xc3" * size)
    | st.sampled_from([b"", b"b", b"latin1", b"." * 70_000]),
    max_size=30,
  ),
  protocol=st.sampled_from(PROTOCOLS),
)
def test_every_protocol_gives_back_what_was_put_in(scratch, protocol, records):
  pickled = pickle.dumps(as_array(records), protocol=protocol)
  read = write(scratch, pickled, (len(records),))
  assert len(read) == len(records)
  assert list(read) == list(read) == records  # Each pass reads anew.


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_records_of_numpy_1_in_several_batches_of_the_pickler(
  tmp_path, protocol
):
  records = [b"block %d" % i for i in range(2001)]
  pickled = pickle.dumps(as_array(records), protocol=protocol)
  for new, old in (
    (b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"),
    (b"\x8c\x16numpy._core.multiarray", b"\x8c\x15numpy.core.multiarray"),
  ):
    pickled = pickled.replace(new, old)
  assert list(write(tmp_path / "a.npy", pickled, (2001,))) == records


class Malicious:
  """Unpickled, it would leave a mark on the file system."""

  def __init__(self, path):
    self._path = path

  def __reduce__(self):
    return os.system, (f"touch {self._path}",)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("place", [None, 0, 2])
def test_a_pickle_that_would_run_a_command_is_refused(
  tmp_path, protocol, place
):
  marked = tmp_path / "marked"
  value = Malicious(marked)
  if place is not None:
    records = [b"a", b"b", b"c"]
    records[place] = value
    value = as_array(records)
  pickled = pickle.dumps(value, protocol=protocol)
  with pytest.raises(ConversionError, match="posix"):
    list(write(tmp_path / "a.npy", pickled, (3,)))
  assert not marked.exists()
  pickle.loads(pickled)  # It does what was feared.
  assert marked.exists()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
  "value",
  ["text", 7, None, [b"a"], (b"a",), {"a": 1}, 1.5, bytearray(b"a")],
  ids=str,
)
def test_what_is_no_array_of_byte_strings_is_refused(scratch, protocol, value):
  pickled = pickle.dumps(as_array([b"a", value, b"b"]), protocol=protocol)
  for content, shape in ((pickled, (3,)), (pickle.dumps(value), (1,))):
    with pytest.raises(ConversionError):
      list(write(scratch, content, shape))


@given(
  at=st.integers(0, 10_000),
  byte=st.integers(0, 255),
  protocol=st.sampled_from(PROTOCOLS),
)
def test_a_file_cut_or_changed_anywhere_gives_bytes_or_the_error(
  scratch, at, byte, protocol
):
  records = [b"Ada", b"", b"x" * 300, b"Ada"]
  pickled = bytearray(pickle.dumps(as_array(records), protocol=protocol))
  at %= len(pickled)
  with pytest.raises(ConversionError, match="is cut short"):
    list(write(scratch, bytes(pickled[:at]), (4,)))
  pickled[at] = byte
  try:
    read = list(write(scratch, bytes(pickled), (4,)))
  except ConversionError:
    return
  assert [type(record) for record in read] == [bytes] * 4


def test_no_pickle_claims_more_memory_than_it_has(scratch):
  pickled = pickle.dumps(as_array([b"x" * 300]), protocol=4)
  at = pickled.index(b"B\x2c\x01\x00\x00")
  exabytes = pickled[:at] + b"\x8e" + struct.pack("<Q", 1 << 60) + b"x"
  deep = [b")" + b"\x85" * 100_000, b"(" * 100_000, b"N" * 100_000]
  for content in (exabytes, *(b"\x80\x04" + nested + b"R." for nested in deep)):
    with pytest.raises(ConversionError):
      list(write(scratch, content, (1,)))


def test_a_file_of_something_else_is_refused(scratch):
  pickled = pickle.dumps(as_array([b"a"]))
  for shape in ((), (2, 2), (-1,), (2,), (0,)):
    with pytest.raises(ConversionError):
      list(write(scratch, pickled, shape))
  with pytest.raises(ConversionError, match="array of float64"):
    write(scratch, pickled, (1,), descr="<f8")
  with pytest.raises(ConversionError, match="more behind the array"):
    list(write(scratch, pickled + b"cos", (1,)))
  whole = scratch.read_bytes()
  for header in (b"PK\x03\x04", whole[:10] + b"{1: 2, 'a': 3}".ljust(118)):
    scratch.write_bytes(header)
    with pytest.raises(ConversionError):
      BlockRecords(scratch)
