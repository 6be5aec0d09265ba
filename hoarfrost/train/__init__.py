"""Training from a recipe: the loop, what is seen of it, and the run folder that it leaves."""

from hoarfrost.train.progress import Progress as Progress
from hoarfrost.train.progress import progress_for as progress_for
from hoarfrost.train.reading import read_recipe as read_recipe
from hoarfrost.train.reading import recipes as recipes
from hoarfrost.train.reading import to_toml as to_toml
from hoarfrost.train.recipe import Recipe as Recipe
from hoarfrost.train.run import RunResult as RunResult
from hoarfrost.train.run import run as run
