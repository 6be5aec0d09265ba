"""Recipes: what they may say, how they are read, and how a run's parts are built from them.

Reading a recipe imports neither torch nor NumPy; building its parts (`networks`, `freezers`, `sources`) does.
"""

from hoarfrost.recipes.loading import read_recipe as read_recipe
from hoarfrost.recipes.loading import recipes as recipes
from hoarfrost.recipes.loading import to_toml as to_toml
from hoarfrost.recipes.schema import Recipe as Recipe
