"""Raw records come out of TFRecord files as they were put in."""

import pytest
import tensorflow as tf

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.block_records import TfRecords

# More than are read at a time.
RECORDS = [b"", b"\xff\x00", *(f"block {i} ë".encode() for i in range(3000))]


def write(path, *, compression=""):
  with tf.io.TFRecordWriter(str(path), compression) as writer:
    for record in RECORDS:
      writer.write(record)
  return path


@pytest.mark.parametrize(
  ("name", "compression"), [("blocks.tfr", ""), ("blocks.tfr.gz", "GZIP")]
)
def test_records_in_order_at_each_pass(tmp_path, name, compression):
  records = TfRecords(write(tmp_path / name, compression=compression))
  assert list(records) == RECORDS
  assert list(records) == RECORDS


def test_a_file_that_is_cut_is_refused(tmp_path):
  path = write(tmp_path / "blocks.tfr")
  whole = path.read_bytes()
  path.write_bytes(whole[:-5])
  with pytest.raises(ConversionError, match="read after 2048 records"):
    list(TfRecords(path))


def test_a_file_that_was_changed_is_refused(tmp_path):
  path = write(tmp_path / "blocks.tfr")
  changed = bytearray(path.read_bytes())
  changed[40] ^= 1
  path.write_bytes(changed)
  with pytest.raises(ConversionError, match="want a whole file of TFRecords"):
    list(TfRecords(path))
