"""Pictures: functions from data to SVG, which know nothing of a database, a request or a clock.

Colours and strokes are classes of the style sheet, as the content policy lets no style stand in a page; each outcome has a shape or
pattern beside its colour. Behind each picture there is a table with the same numbers.
"""

from rota.dashboard.charts.bars import Bar, Mark, bars
from rota.dashboard.charts.course import Point, Track, line, tracks
from rota.dashboard.charts.heat import Cell, heat
from rota.dashboard.charts.lanes import Lane, Span, condensed, lanes
from rota.dashboard.charts.lines import Quantiles, band, spark

__all__ = [
    "Bar",
    "Cell",
    "Lane",
    "Mark",
    "Point",
    "Quantiles",
    "Span",
    "Track",
    "band",
    "bars",
    "condensed",
    "heat",
    "lanes",
    "line",
    "spark",
    "tracks",
]
