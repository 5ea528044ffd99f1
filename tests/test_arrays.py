"""What numpy's old versions lack."""

import numpy as np
import pytest

from lance_stream.arrays import count_bits


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i8"])
def test_bits_are_counted_without_numpy_2(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Platforms of PySpark 3.5 have numpy 1, which cannot count them."""
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    values = np.array([0, 1, 2, 127, np.iinfo(dtype).max, 85], dtype)
    expected = [bin(value).count("1") for value in values.tolist()]
    assert count_bits(values[::-1])[::-1].tolist() == expected
    assert count_bits(values.reshape(2, 3)).tolist() == [expected[:3], expected[3:]]
    assert count_bits(values[:0]).tolist() == []
