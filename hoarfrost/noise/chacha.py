"""ChaCha20 (RFC 8439) as tensor arithmetic: the keystream is computed on the device that uses it.

Only the key and the counters cross the bus. On a CPU, AES in hardware is many times faster: see `keystream`.
"""

import torch
from torch import Tensor

WORDS_PER_BLOCK = 16
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"


def words(key: bytes, draw: int, chunk: int, count: int, device: torch.device | str) -> Tensor:
    """The first `count` 32-bit words of a chunk, as a new int32 tensor `[count]` on `device`.

    The 96-bit nonce is the draw's number (64 bit, little endian) followed by the chunk's (32 bit); the block
    counter starts at 0. About 3.5 times the result's size is needed as scratch memory.

    >>> words(bytes(32), draw=0, chunk=0, count=2, device="cpu").numpy().tobytes().hex()
    '76b8e0ada0f13d90'
    """
    blocks = -(-count // WORDS_PER_BLOCK)
    if not 0 <= blocks <= 1 << 31:
        raise ValueError(f"a chunk holds up to 2^35 words, got {count}")
    nonce = draw.to_bytes(8, "little") + chunk.to_bytes(4, "little")
    secret = [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)]
    public = [int.from_bytes(nonce[i : i + 4], "little") for i in range(0, 12, 4)]
    start = torch.tensor([_signed(w) for w in (*_CONSTANTS, *secret, 0, *public)], dtype=torch.int32)
    # state[row, column, block]: the standard's 4 x 4 matrix of words, for all blocks at once
    state = start.to(device).view(4, 4, 1).repeat(1, 1, blocks)
    counter = torch.arange(blocks, dtype=torch.int32, device=device)
    state[3, 0] = counter
    a, b, c, d = state
    scratch = torch.empty_like(a)
    for _ in range(10):
        _quarter_rounds(a, b, c, d, scratch)
        # The diagonals become columns when row i is turned by i places; then it is turned back.
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        _quarter_rounds(a, b, c, d, scratch)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    mixed = torch.stack((a, b, c, d))
    mixed += start.to(device).view(4, 4, 1)
    mixed[3, 0] += counter
    return mixed.view(WORDS_PER_BLOCK, blocks).t().reshape(-1)[:count]


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor, scratch: Tensor) -> None:
    """Four quarter rounds side by side, in place; a row is `[4, blocks]`. int32 addition wraps around."""
    for first, second in ((16, 12), (8, 7)):
        a += b
        d ^= a
        _rotate_left(d, first, scratch)
        c += d
        b ^= c
        _rotate_left(b, second, scratch)


def _rotate_left(x: Tensor, bits: int, scratch: Tensor) -> None:
    torch.bitwise_left_shift(x, bits, out=scratch)
    x >>= 32 - bits
    x &= (1 << bits) - 1  # the shift to the right copies the sign bit: clear what it brought in
    x |= scratch


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
