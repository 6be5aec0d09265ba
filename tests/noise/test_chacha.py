"""ChaCha20 in tensor arithmetic equals the library's, byte for byte."""

import os

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from hoarfrost.noise import chacha


def reference(key: bytes, draw: int, chunk: int, count: int) -> bytes:
    nonce = bytes(4) + draw.to_bytes(8, "little") + chunk.to_bytes(4, "little")
    return Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(4 * count))


@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000, 40_001])
@pytest.mark.parametrize(("draw", "chunk"), [(0, 0), (1, 2), ((1 << 64) - 1, (1 << 32) - 1), (1 << 63, 1 << 31)])
def test_the_keystream_is_the_reference_byte_for_byte(count, draw, chunk):
    key = os.urandom(32)
    assert chacha.words(key, draw, chunk, count, "cpu").numpy().tobytes() == reference(key, draw, chunk, count)


def test_the_standards_own_vector():
    """RFC 8439, appendix A.1, vector 1: key, nonce and counter of zeros."""
    expected = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert chacha.words(bytes(32), 0, 0, 16, "cpu").numpy().tobytes().hex() == expected


def test_words_are_32_bit_integers_where_they_were_asked_for():
    words = chacha.words(bytes(32), 0, 0, 5, torch.device("cpu"))
    assert (words.dtype, words.shape, words.device.type) == (torch.int32, (5,), "cpu")


def test_more_words_than_a_counter_can_number_are_refused():
    with pytest.raises(ValueError, match="2\\^35"):
        chacha.words(bytes(32), 0, 0, (1 << 35) + 1, "cpu")
