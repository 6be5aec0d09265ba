"""What make_private is given and returns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import hoarfrost
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.optim import PrivateOptimizer
from hoarfrost.sampling import PoissonLoader
from tests.usage.small import assert_same, data, private, small, train, trained


@pytest.mark.parametrize("clip", [0.5, hoarfrost.clip.Local(0.5)])
def test_a_number_is_short_for_local_clipping(clip: float | hoarfrost.clip.Clipper) -> None:
    run = private(small(), clip=clip)
    assert run.optimizer.engine.clipper == hoarfrost.clip.Local(0.5)
    train(run)
    assert_same([p.detach() for p in run.model.parameters()], trained(small(), clip=hoarfrost.clip.Local(0.5)))


def test_whole_numbers_are_numbers_and_other_things_are_refused() -> None:
    assert private(small(), clip=1).optimizer.engine.clipper == hoarfrost.clip.Local(1.0)
    for clip in (True, "1.0", None):
        with pytest.raises(InvalidValue, match=r"clip= takes a clipping style"):
            private(small(), clip=clip)
    with pytest.raises(InvalidValue, match=r"above 0"):
        private(small(), clip=-1.0)


def test_make_compatible_returns_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    model = hoarfrost.make_compatible(model)
    train(private(model))


@pytest.mark.parametrize("rate", [5e-324, 1e-10])
def test_a_rate_at_which_an_epoch_never_ends_is_refused_at_once(rate: float) -> None:
    with pytest.raises(InvalidValue, match=r"rate of .* is too small"):
        private(small(), sample_rate=rate, epochs=1, epsilon=1.0, noise_multiplier=None)
    with pytest.raises(InvalidValue, match=r"rate of .* is too small|must lie in \(0, 1\]"):
        private(small(), batch_size=rate)


def test_a_private_loader_is_told_of_its_data() -> None:
    run = private(small())
    with pytest.raises(NotPrivate, match=r"this loader is private already.*loader\.dataset"):
        private(small(), dataset=run.loader)


def test_a_run_in_the_place_of_a_model_is_refused() -> None:
    run = private(small())
    optimizer = torch.optim.SGD(small().parameters(), lr=0.1)
    with pytest.raises(InvalidValue, match=r"a model, its optimizer and its data, .* got a Private and a SGD"):
        private(run, optimizer)  # type: ignore[arg-type]


# What comes back.


def test_what_a_run_and_its_parts_say_of_themselves() -> None:
    run = private(small(), batch_size=10, steps=8, noise_multiplier=1.5)
    loader = "PoissonLoader(TensorDataset of 60, batch_size=10; {} steps drawn of 8)"
    said = f"Private(Sequential, SGD, {loader}, noise_multiplier=1.5, delta=1e-05; {{}} steps taken of 8)"
    assert repr(run.loader) == loader.format(0)
    assert repr(run) == said.format(0, 0)
    train(run)
    assert repr(run) == said.format(6, 6)
    chunks = private(small(), max_physical_batch=4, views=2)
    said = "PoissonLoader(TensorDataset of 60, batch_size=60, views=2, max_physical_batch=4; 0 steps drawn)"
    assert repr(chunks.loader) == said


def test_the_loader_s_batch_size_is_the_expected_one() -> None:
    assert private(small(), batch_size=7).loader.batch_size == 7
    assert isinstance(private(small(), batch_size=7).loader.batch_size, int)
    assert private(small(), dataset=data(99), sample_rate=0.1).loader.batch_size == pytest.approx(9.9)


def test_the_length_of_an_epoch_in_chunks_is_not_known_and_the_message_says_what_is() -> None:
    run = private(small(), max_physical_batch=4)
    with pytest.raises(TypeError, match=r"private\.steps.*private\.stepped"):
        len(run.loader)


def test_a_run_is_a_tuple_of_three_that_cannot_be_changed() -> None:
    run = private(small())
    model, optimizer, loader = run
    assert (model, optimizer, loader) == (run.model, run.optimizer, run.loader) == (run[0], run[1], run[2])
    assert len(run) == 3
    assert hoarfrost.Private.__orig_bases__ == (tuple[nn.Module, PrivateOptimizer, PoissonLoader],)  # for type checkers


SNIPPET = """
import hoarfrost
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

def program(model: nn.Module, plain: Optimizer, data: TensorDataset) -> None:
    private = hoarfrost.make_private(model, plain, data, batch_size=10, epsilon=1.0, epochs=1, delta=1e-5, clip=1.0)
    module, optimizer, loader = private
    reveal_type(module)
    reveal_type(optimizer)
    reveal_type(loader)
    optimizer.no_such_method()
"""


@pytest.mark.slow
def test_unpacking_is_typed(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent"]
    found = subprocess.run(
        [*command, str(tmp_path / "snippet.py")], capture_output=True, text=True, check=False,
        cwd=Path(hoarfrost.__file__).parents[1],
    ).stdout  # fmt: skip
    assert 'Revealed type is "torch.nn.modules.module.Module"' in found
    assert 'Revealed type is "hoarfrost.optim.private.PrivateOptimizer"' in found
    assert 'Revealed type is "hoarfrost.sampling.loader.PoissonLoader"' in found
    assert '"PrivateOptimizer" has no attribute "no_such_method"' in found
