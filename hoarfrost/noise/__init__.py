"""Gaussian noise from a cryptographic generator, scaled by the standard deviations it is handed."""

from hoarfrost.noise.gaussian import Noise as Noise
from hoarfrost.noise.keystream import Keystream as Keystream
