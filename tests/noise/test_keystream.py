"""The keystream: unpredictable, never the same block twice, never copied."""

import copy
import os
import pickle

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.noise.keystream import MAX_BYTES, Keystream


def blocks(stream: Keystream, draw: int, chunk: int, size: int = 4096) -> list[bytes]:
    data = bytes(stream.read(size, draw, chunk))
    return [data[i : i + 16] for i in range(0, size, 16)]


def test_the_bytes_are_aes_256_of_the_address():
    stream = Keystream("test", seed=3)
    draw, chunk = (1 << 63) + 5, (1 << 31) + 7
    ecb = Cipher(algorithms.AES(stream._key), modes.ECB()).encryptor()
    expected = b"".join(
        ecb.update(draw.to_bytes(8, "big") + chunk.to_bytes(4, "big") + block.to_bytes(4, "big")) for block in range(5)
    )
    assert stream.read(77, draw, chunk) == expected[:77]


def test_no_block_comes_twice_across_draws_and_chunks():
    stream = Keystream("test", seed=0)
    seen = [b for _ in range(20) for draw in [stream.next_draw()] for c in range(5) for b in blocks(stream, draw, c)]
    assert len(set(seen)) == len(seen) == 20 * 5 * 256


def test_a_short_read_is_the_beginning_of_a_long_one():
    stream = Keystream("test")
    assert stream.read(MAX_BYTES, 0, 0)[:100] == stream.read(100, 0, 0)


def test_more_than_a_chunk_holds_is_refused_rather_than_left_unfilled():
    with pytest.raises(ValueError, match="up to"):
        Keystream("test").read(MAX_BYTES + 1, 0, 0)


def test_streams_without_a_seed_have_nothing_in_common():
    assert not set(blocks(Keystream("test"), 0, 0)) & set(blocks(Keystream("test"), 0, 0))


def test_streams_of_one_seed_repeat_and_differ_by_purpose_and_seed():
    first = Keystream("noise", seed=1).read(64, 0, 0)
    assert first == Keystream("noise", seed=1).read(64, 0, 0)
    assert first != Keystream("sampling", seed=1).read(64, 0, 0)
    assert first != Keystream("noise", seed=2).read(64, 0, 0)
    assert first != Keystream("noise", seed=-1).read(64, 0, 0)


@pytest.mark.parametrize("seed", [True, 1.0, "1", b"1"])
def test_a_seed_that_is_not_a_whole_number_is_refused(seed):
    with pytest.raises(InvalidValue, match="seed"):
        Keystream("test", seed=seed)


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("seed", [None, 1])
def test_a_stream_cannot_be_copied(copier, seed):
    with pytest.raises(NotPrivate, match="cannot be copied or pickled"):
        copier(Keystream("test", seed=seed))


def test_the_key_is_not_printed():
    stream = Keystream("test")
    assert repr(stream._key) not in repr(stream) + str(stream)
    assert stream._key.hex() not in repr(stream) + str(stream)


def test_draws_can_be_skipped_but_never_taken_back():
    stream = Keystream("test")
    assert [stream.next_draw(), stream.next_draw()] == [0, 1]
    stream.skip_to(10)
    assert stream.next_draw() == 10
    with pytest.raises(InvalidValue, match="from 11"):
        stream.skip_to(10)
    with pytest.raises(InvalidValue, match="2\\^64"):
        stream.skip_to(1 << 64)


def test_a_subkey_does_not_reveal_or_repeat_the_key():
    stream = Keystream("test", seed=1)
    assert len({stream._key, stream.subkey("a"), stream.subkey("b")}) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("seed", "repeats"), [(None, False), (1, True)])
def test_a_forked_child_repeats_its_parent_only_when_seeded(seed, repeats):
    stream = Keystream("test", seed=seed)
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(send, stream.read(32, stream.next_draw(), 0))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    from_child = os.read(receive, 32)
    os.close(receive)
    os.close(send)
    assert len(from_child) == 32
    assert (from_child == stream.read(32, stream.next_draw(), 0)) == repeats
