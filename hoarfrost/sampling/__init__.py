"""Poisson batches, and the accounting event that describes them."""

from hoarfrost.sampling.loader import PoissonLoader as PoissonLoader
from hoarfrost.sampling.poisson import Poisson as Poisson
from hoarfrost.tickets import Chunk as Chunk
