"""Whether the data are still the same, without keeping anything by which they could be guessed."""

import hashlib
import hmac
import json
import secrets
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import TensorDataset

from hoarfrost.data import Texts

FILE = "not-private/data.json"


def digest(data: TensorDataset | Texts, people: Tensor | None = None) -> bytes:
    """A hash of every example and label, and of whose they are. Private: who knows all but one could try out that one.

    Texts are hashed as they were before they were cut into tokens.

    >>> import torch
    >>> ones = TensorDataset(torch.ones(2, 3), torch.zeros(2))
    >>> digest(ones) == digest(TensorDataset(torch.ones(2, 3), torch.zeros(2)))
    True
    >>> digest(ones) == digest(TensorDataset(torch.ones(2, 3), torch.ones(2)))
    False
    """
    total = hashlib.sha256()
    tensors: list[Tensor] = []
    if isinstance(data, Texts):
        total.update(data.digest)
    else:
        tensors += data.tensors
    for tensor in tensors if people is None else (*tensors, people):
        total.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        total.update(_bytes(tensor))
    return total.digest()


def facts(data_digest: bytes) -> dict[str, str]:
    """What is kept, below not-private/: the digest under a key of its own, and the key."""
    key = secrets.token_bytes(32)
    return {"key": key.hex(), "fingerprint": _under(key, data_digest)}


def same(folder: Path, data_digest: bytes) -> bool:
    """Whether the data are those that the run folder was made with; no if that cannot be known any more."""
    try:
        kept = json.loads((folder / FILE).read_text("ascii"))
        return hmac.compare_digest(str(kept["fingerprint"]), _under(bytes.fromhex(kept["key"]), data_digest))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _under(key: bytes, data_digest: bytes) -> str:
    return hmac.new(key, data_digest, "sha256").hexdigest()


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().numpy().reshape(-1).view("uint8")
