"""Components and what they can be told: registered once, on the class itself. Nothing here imports torch."""

from hoarfrost.registry.component import Component as Component
from hoarfrost.registry.registration import component as component
from hoarfrost.registry.registration import components as components
from hoarfrost.registry.registration import forget as forget
from hoarfrost.registry.registration import loaded as loaded
from hoarfrost.registry.types import Channels as Channels
from hoarfrost.registry.types import ClipStyle as ClipStyle
from hoarfrost.registry.types import Count as Count
from hoarfrost.registry.types import FilePath as FilePath
from hoarfrost.registry.types import FolderPath as FolderPath
from hoarfrost.registry.types import Natural as Natural
from hoarfrost.registry.types import NotNegative as NotNegative
from hoarfrost.registry.types import Patterns as Patterns
from hoarfrost.registry.types import Positive as Positive
from hoarfrost.registry.types import Probability as Probability
from hoarfrost.registry.types import Rate as Rate
from hoarfrost.registry.types import Real as Real
from hoarfrost.registry.types import Share as Share
from hoarfrost.registry.types import SomePatterns as SomePatterns
from hoarfrost.registry.types import Text as Text
from hoarfrost.registry.types import Whole as Whole
from hoarfrost.registry.types import Widths as Widths
