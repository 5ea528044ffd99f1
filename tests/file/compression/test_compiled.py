"""The compiled loops: numpy's results, on damaged input, too."""

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer, starts_of
from lance_stream.file.blocks.data_blocks import FixedWidthBlock, VariableWidthBlock
from lance_stream.file.compression import compiled, fastlanes, fsst
from lance_stream.file.compression.compiled import CompiledLoops
from lance_stream.file.compression.fsst_matching import Matcher
from lance_stream.file.compression.fsst_symbols import SymbolTable
from lance_stream.file.encoding_options import EncodingOptions
from lance_stream.file.v2_1.codecs import bitpacking, decode_mini_block
from lance_stream.file.v2_1.codecs.bitpacking import OutOfLineBitpacking
from lance_stream.file.v2_1.layouts import level_chunks
from lance_stream.file.v2_1.layouts.choosing import choose_strings
from lance_stream.file.v2_1.layouts.choosing.choose_strings import encode_string_page
from lance_stream.file.v2_1.layouts.level_chunks import decode_level_chunks
from lance_stream.file.v2_1.layouts.levels import ALL_VALID_ITEM, Levels, layers_of
from lance_stream.file.versions import FileVersion

kernels = pytest.importorskip(
    "lance_stream.file.compression.kernels", reason="it needs the extra fast"
)

WORDS = [b"the ", b"quick ", b"brown ", b"fox ", b"jumps ", b"\x00", b"\xff", b"z"]


def both_ways(run: Callable[[], object]) -> tuple[object, object]:
    """Return the results of a function by numpy and by loops, or the messages of errors."""
    results: list[object] = []
    for module in (None, kernels):
        with compiled.loops.replaced(module):
            try:
                results.append(run())
            except CorruptDataError as error:
                results.append(str(error))
    return results[0], results[1]


def block_of(values: list[bytes], offsets: type = np.int32) -> VariableWidthBlock:
    bounds = np.cumsum([0, *map(len, values)]).astype(offsets)
    return VariableWidthBlock(len(values), bounds, np.frombuffer(b"".join(values), np.uint8))


def content_of(block: VariableWidthBlock) -> tuple[bytes, list[int], str]:
    return block.data.tobytes(), block.offsets.tolist(), block.offsets.dtype.name


@settings(max_examples=60, deadline=None)
@given(
    codes=st.lists(st.lists(st.sampled_from([0, 1, 2, 2, 3, 255]), max_size=9), max_size=9),
    symbols=st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=4),
    offsets=st.sampled_from([np.int32, np.int64]),
)
def test_any_codes_decode_alike(codes, symbols, offsets):
    """Codes without a symbol and escapes at the end of a value among them."""
    block = block_of([bytes(code) for code in codes], offsets)
    table = SymbolTable(is_on=True, symbols=tuple(symbols))
    by_numpy, by_loops = both_ways(lambda: content_of(fsst.decode(block, table)))
    if isinstance(by_numpy, tuple) or isinstance(by_loops, tuple):
        assert by_numpy == by_loops


@pytest.mark.parametrize(
    "words", [WORDS, [bytes([number]) for number in range(256)]], ids=["few words", "all bytes"]
)
@pytest.mark.parametrize("longest", [12, 1200])
def test_values_are_encoded_alike(words, longest):
    """Files must not depend on whether the compiler is installed."""
    rng = np.random.default_rng(longest)
    values = [
        b"".join(
            words[integer] for integer in rng.integers(0, len(words), rng.integers(0, longest))
        )
        for _ in range(60_000 // longest)
    ]
    by_numpy, by_loops = both_ways(lambda: fsst.encode(block_of(values)))
    assert content_of(by_numpy[0]) == content_of(by_loops[0])
    assert by_numpy[1] == by_loops[1]


@given(values=st.lists(st.lists(st.sampled_from(WORDS), max_size=4), max_size=5))
@settings(max_examples=60, deadline=None)
def test_uncompiled_loops_stay_inside_their_arrays(values):
    """One half of the values may be empty, and the last end less than 8 bytes before the data."""
    choice = fsst.trained(block_of([b"".join(WORDS[:6])] * 800))
    assert choice is not None
    values = [b"".join(value) for value in values]
    block = block_of([*values, b"z"])
    matcher = Matcher(choice.symbols, choice.sizes)
    bounds = block.offsets.astype(np.int64)
    by_numpy, ends_by_numpy = fsst._codes(bounds, block.data, matcher, choice.terminator)
    codes, ends = np.zeros(2 * len(block.data), np.uint8), np.zeros(block.num_values, np.int64)
    arguments = (block.data, bounds, choice.terminator, *matcher.tables)
    size = kernels.encode.py_func(*arguments, codes, ends)
    assert codes[:size].tolist() == by_numpy.tolist()
    assert np.diff(ends, prepend=0).tolist() == ends_by_numpy.tolist()


@pytest.mark.parametrize("word", [np.uint32, np.uint64])
def test_all_widths_are_packed_alike(word):
    """Files must not depend on whether the compiler is installed, at any width of values."""
    bits = np.dtype(word).itemsize * 8
    values = np.random.default_rng(bits).integers(0, 2**bits, (bits + 1) * 1024 - 300, np.uint64)
    values = values.astype(word) >> np.repeat(np.arange(bits + 1), 1024)[: len(values)].astype(word)
    values[bits * 1024 :] = 0
    block = FixedWidthBlock(bits, len(values), values.view(np.uint8))
    encoded, packed_by_loops = both_ways(lambda: bitpacking.encode_mini_block(block))
    assert encoded.buffers[0].data.tobytes() == packed_by_loops.buffers[0].data.tobytes()
    by_numpy, by_loops = both_ways(
        lambda: encoded.codec.decode_mini_block(encoded.buffers, encoded.num_values).words()
    )
    assert (by_numpy == values).all()
    assert (by_loops == values).all()


def test_chunks_at_odd_positions_unpack():
    """Compiled loops must not rely on the alignment of stored bytes."""
    values = np.arange(3000, dtype=np.uint64)
    encoded = bitpacking.encode_mini_block(FixedWidthBlock(64, 3000, values.view(np.uint8)))
    (buffer,) = encoded.buffers
    shifted = ChunkedBuffer(np.append(np.uint8(0), buffer.data), buffer.starts + 1, buffer.sizes)
    by_numpy, by_loops = both_ways(
        lambda: encoded.codec.decode_mini_block([shifted], encoded.num_values).words()
    )
    assert (by_numpy == values).all()
    assert (by_loops == values).all()


@pytest.mark.parametrize("damage", ["width", "size", "start"])
def test_compiled_loops_refuse_damaged_chunks(damage):
    """A compiled loop does not check bounds and would read foreign memory."""
    values = np.arange(3000, dtype=np.uint64)
    encoded = bitpacking.encode_mini_block(FixedWidthBlock(64, 3000, values.view(np.uint8)))
    (buffer,) = encoded.buffers
    data, sizes = buffer.data.copy(), buffer.sizes.copy()
    if damage == "width":
        data[int(buffer.starts[1])] = 65
    elif damage == "size":
        sizes[-1] += 128
    else:
        data = data[:-8]
    outcomes = both_ways(
        lambda: decode_mini_block(
            encoded.encoding, [ChunkedBuffer(data, buffer.starts, sizes)], encoded.num_values
        )
    )
    assert all(isinstance(value, str) for value in outcomes)


@pytest.mark.parametrize("seed", range(12))
def test_codes_decode_alike_across_blocks(seed):
    """Escapes lie across the ends of blocks; of every other seed, a value ends within one."""
    random = np.random.default_rng(seed)
    codes = random.choice(np.array([0, 1, 1, 255], np.uint8), 5000)
    codes[-2:] = 0
    starts, at = [], 0
    while at < len(codes):
        starts.append(at)
        at += 1 + (codes[at] == 255)
    ends = random.choice(starts[1:], 700)
    if seed % 2:
        ends[seed] = 1 + next(
            position for position in starts if position > 300 * seed and codes[position] == 255
        )
    offsets = np.sort([0, *ends, len(codes)]).astype(np.int32)
    table = SymbolTable(is_on=True, symbols=(b"a", b"several"))
    block = VariableWidthBlock(len(offsets) - 1, offsets, codes)
    one, other = both_ways(lambda: content_of(fsst.decode(block, table)))
    assert one == other
    assert isinstance(one, str) == bool(seed % 2)


@settings(max_examples=60, deadline=None)
@given(
    codes=st.binary(max_size=30),
    offsets=st.lists(st.integers(-40, 40), max_size=6),
    num_symbols=st.integers(0, 255),
)
def test_no_offsets_lead_outside_the_arrays(codes, offsets, num_symbols):
    """Uncompiled, an index out of bounds raises an error, and none counts from the end."""
    table = SymbolTable(is_on=True, symbols=(b"12345678",) * num_symbols)
    symbols, lengths = fsst._symbol_arrays(table)
    stored = np.frombuffer(codes, np.uint8)
    maximum = kernels.max_bytes.py_func(stored, lengths)
    data = np.zeros(int(maximum) + 8, np.uint8)
    bounds = np.array([0, *offsets], np.int64)
    ends = np.zeros(len(bounds), np.int64)
    total = kernels.decode.py_func(stored, bounds, symbols, lengths, data, ends)
    assert total <= maximum
    assert kernels.decode(stored, bounds, symbols, lengths, data, ends) == total


@pytest.mark.parametrize("bits", [32, 64])
def test_loops_stay_inside_their_words(bits):
    """Run as Python, an index out of bounds raises, which compiled code would not notice."""
    word = np.dtype(f"<u{bits // 8}")
    for width in (0, 1, bits // 2 + 1, bits):
        values = np.full((1, 1024), (1 << width) - 1, word)
        packed = fastlanes.pack(values, width).reshape(-1)
        unpacked = np.zeros((1, 1024), word)
        one = np.ones(1, np.int64)
        kernels.unpack.py_func(packed, one * 0, one * width, unpacked)
        assert (unpacked == values).all()
        repacked = np.zeros_like(packed)
        kernels.pack.py_func(values, one * 0, one * width, repacked)
        assert (repacked == packed).all()


@pytest.mark.parametrize("width", range(17))
def test_levels_of_any_width_unpack_alike(width):
    """With tails that are packed, plain or missing, and damaged counts."""
    random = np.random.default_rng(width)
    per_block = width * 64
    counts = np.array([1024, 2048 + per_block, 3, 1500, 0, 1, 1023, 4096], np.int64)
    values = random.integers(0, 1 << width, int(counts.sum()), np.uint16)
    stored = level_chunks._packed(values, counts, width)
    encoding = OutOfLineBitpacking(16, width).to_proto()
    gap = np.zeros(2, np.uint8)
    pieces = [stored.data[a : a + n] for a, n in zip(stored.starts, stored.sizes, strict=True)]
    apart = np.concatenate([value for piece in pieces for value in (gap, piece)])
    starts = starts_of(stored.sizes + 2) + 2
    for buffer in (stored, ChunkedBuffer(apart, starts, stored.sizes)):
        decoded = partial(decode_level_chunks, encoding, buffer)
        one, other = both_ways(lambda decoded=decoded: decoded(counts).tolist())
        assert one == other == values.tolist()
        one, other = both_ways(lambda decoded=decoded: decoded(counts + 1025).tolist())
        assert one == other
        levels = np.zeros(len(values), np.uint16)
        words = buffer.data.view(np.uint16)
        packs_tail = (counts % 1024 > per_block) & (counts % 1024 > 0)
        kernels.unpack_levels.py_func(words, buffer.starts // 2, counts, packs_tail, width, levels)
        assert (levels == values).all()


def test_loops_load_once_at_first_use(monkeypatch):
    """Loading takes half a second, and a failure would be logged each time."""
    imports = []
    monkeypatch.setattr(compiled, "_imported", lambda: imports.append(1))
    loops = CompiledLoops()
    assert not imports
    for _ in range(3):
        loops.get()
    assert len(imports) == 1


def test_loops_load_once_in_the_background(monkeypatch):
    """A sink starts to load them while Spark starts its query, and its first batch waits for that
    load instead of starting another.
    """
    has_begun, may_end, threads = threading.Event(), threading.Event(), []

    def imported() -> ModuleType:
        threads.append(threading.current_thread())
        has_begun.set()
        assert may_end.wait(60)
        return kernels

    monkeypatch.setattr(compiled, "_imported", imported)
    loops = CompiledLoops()
    loops.load_in_background()
    assert has_begun.wait(60)
    threading.Timer(0.1, may_end.set).start()
    assert loops.get() is kernels
    loops.load_in_background()
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


def test_importing_the_package_imports_no_numba():
    """A command line or a driver that touches no data file does not wait for it."""
    script = "import sys, lance_stream; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_numpy_replaces_a_failing_compiler(monkeypatch, caplog):
    """The compiler is optional, and its failure must neither stop a query nor be tried again."""

    def fail(_: str) -> None:
        raise RuntimeError("no locator available")

    monkeypatch.setattr(compiled.importlib, "import_module", fail)
    loops = CompiledLoops()
    assert loops.get() is None
    assert "no locator available" in caplog.text
    monkeypatch.undo()
    assert loops.get() is None


def test_interpreted_loops_are_not_used(monkeypatch):
    """With NUMBA_DISABLE_JIT=1, set to debug other code, loops would run in slow Python."""
    monkeypatch.setattr(kernels.numba.config, "DISABLE_JIT", 1)
    assert CompiledLoops().get() is None


def test_only_compiled_loops_write_fsst(monkeypatch):
    """Few words in random order suit FSST; lines that repeat suit zstd."""
    monkeypatch.setattr(choose_strings, "MIN_FSST_BYTES", 1)
    rng = np.random.default_rng(1)
    words = [f"word{number} ".encode() for number in range(40)]
    random = [b"".join(words[integer] for integer in rng.integers(0, 40, 20)) for _ in range(3000)]
    repeated = [b"2026-11-23 GET /index.html 200 %d" % (number % 7000) for number in range(9000)]

    def schemes(values: list[bytes]) -> set[str]:
        block = block_of(values)
        levels = Levels(layers_of((ALL_VALID_ITEM,)), None, None, block.num_values)
        layout = encode_string_page(levels, block, FileVersion.V2_2, EncodingOptions())
        assert layout is not None
        encoding = layout.message.mini_block_layout.value_compression
        return {encoding.WhichOneof("compression")}

    assert both_ways(lambda: schemes(random)) == ({"general"}, {"fsst"})
    assert both_ways(lambda: schemes(repeated)) == ({"general"}, {"general"})


def test_small_pages_do_not_use_fsst():
    """Choosing symbols takes 12 ms, longer than writing a small batch."""
    rng = np.random.default_rng(1)
    words = [f"word{number} ".encode() for number in range(40)]
    block = block_of([b"".join(words[n] for n in rng.integers(0, 40, 20)) for _ in range(3000)])
    with compiled.loops.replaced(kernels):
        assert choose_strings._smaller_fsst(block, 0.3) is None


def test_impossible_string_offsets_are_refused():
    """Arrow arrays can be built without a check of their offsets."""
    block = block_of([b"some text "] * 3000)
    for index, wrong in ((-1, 40_000), (7, 20_000), (0, -5)):
        offsets = block.offsets.copy()
        offsets[index] = wrong
        with (
            compiled.loops.replaced(kernels),
            pytest.raises(InvalidInputError, match="offsets that descend or exceed"),
        ):
            fsst._codes_by_loop(kernels, offsets.astype(np.int64), block.data, None, 0)
