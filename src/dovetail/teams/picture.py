"""A pipeline as a picture: text for a terminal, SVG for a page; pure.

Teams are in columns, each to the right of all that lead to it (edges that close a named cycle do
not count). The SVG has no script and no reference, so any page can show it.
"""

from html import escape

from dovetail.settings.quantity import format_duration_ms
from dovetail.teams.connectors import ConnectorKind
from dovetail.teams.graph import Edge, Pipeline

_BOX_WIDTH, _BOX_HEIGHT = 150, 44
_GAP_X, _GAP_Y, _MARGIN = 110, 36, 24


def as_text(pipeline: Pipeline) -> str:
    """The teams in order, and where each one's results go."""
    lines = [pipeline.name]
    for name, team in pipeline.teams.items():
        workers = f"{team.workers} worker{'' if team.workers == 1 else 's'}"
        topics = pipeline.topics(name)
        lines.append(f"  {name}  ({workers}, {topics.input} -> {topics.results})")
        edges = [edge for edge in pipeline.edges if edge.source == name]
        for number, edge in enumerate(edges):
            branch = "└" if number == len(edges) - 1 else "├"
            lines.append(f"    {branch}─ {label_of(edge)} ─> {edge.target}")
    return "\n".join(lines) + "\n"


def label_of(edge: Edge) -> str:
    """How results travel along an edge."""
    connector = edge.connector
    words = [connector.kind.value]
    if connector.kind is ConnectorKind.ROUTE:
        words = ["if" if edge.holds else "else"]
    if connector.after_ms:
        words.append(f"after {format_duration_ms(connector.after_ms)}")
    if connector.id_suffix is not None:
        words.append(f"as {connector.id_suffix}")
    if connector.cycle is not None:
        words.append(f"cycle {connector.cycle}")
    return ", ".join(words)


def columns_of(pipeline: Pipeline) -> list[list[str]]:
    """The teams by column: each to the right of all that lead to it."""
    depth = dict.fromkeys([*pipeline.teams, *pipeline.foreign_targets], 0)
    forward = [edge for edge in pipeline.edges if edge.connector.cycle is None]
    for _ in pipeline.teams:
        for edge in forward:
            depth[edge.target] = max(depth[edge.target], depth[edge.source] + 1)
    columns: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for name, column in depth.items():
        columns[column].append(name)
    return columns


def as_svg(pipeline: Pipeline) -> str:
    """The graph as one SVG element."""
    columns = columns_of(pipeline)
    place = {
        name: (_MARGIN + x * (_BOX_WIDTH + _GAP_X), _MARGIN + y * (_BOX_HEIGHT + _GAP_Y))
        for x, column in enumerate(columns)
        for y, name in enumerate(column)
    }
    width = 2 * _MARGIN + len(columns) * (_BOX_WIDTH + _GAP_X) - _GAP_X
    rows = max(len(column) for column in columns)
    height = 2 * _MARGIN + rows * (_BOX_HEIGHT + _GAP_Y)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(pipeline.name)}</title>",
        '<defs><marker id="tip" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        '<path d="M0,0 L9,4 L0,8 z" fill="#667"/></marker></defs>',
        *(_edge(edge, place) for edge in pipeline.edges),
        *(_box(pipeline, name, place[name]) for column in columns_of(pipeline) for name in column),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _edge(edge: Edge, place: dict[str, tuple[int, int]]) -> str:
    (x, y), (to_x, to_y) = place[edge.source], place[edge.target]
    start, end = (x + _BOX_WIDTH, y + _BOX_HEIGHT // 2), (to_x, to_y + _BOX_HEIGHT // 2)
    dash = ""
    if edge.connector.cycle is not None:
        start, end = (x + _BOX_WIDTH // 2, y + _BOX_HEIGHT), (to_x + 20, to_y + _BOX_HEIGHT)
        dash = ' stroke-dasharray="5 4"'

    middle = ((start[0] + end[0]) // 2, (start[1] + end[1]) // 2)
    bend = (end[0] - start[0]) // 2 if not dash else 0
    sag = 0 if not dash else _GAP_Y
    path = (
        f"M{start[0]},{start[1]} C{start[0] + bend},{start[1] + sag} "
        f"{end[0] - bend},{end[1] + sag} {end[0]},{end[1]}"
    )
    label = escape(label_of(edge))

    return (
        f'<path d="{path}" fill="none" stroke="#667"{dash} marker-end="url(#tip)"/>'
        f'<text x="{middle[0]}" y="{middle[1] - 5 + sag}" text-anchor="middle" font-size="11" '
        f'fill="#445">{label}</text>'
    )


def _box(pipeline: Pipeline, name: str, place: tuple[int, int]) -> str:
    x, y = place
    team = pipeline.known(name)
    assert team is not None, "it is drawn"
    workers = team.workers
    noun = "worker" if workers == 1 else "workers"
    return (
        f'<rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6" '
        f'fill="#eef3fb" stroke="#446"/>'
        f'<text x="{x + _BOX_WIDTH // 2}" y="{y + 19}" text-anchor="middle" font-weight="bold">'
        f"{escape(name)}</text>"
        f'<text x="{x + _BOX_WIDTH // 2}" y="{y + 35}" text-anchor="middle" font-size="11" '
        f'fill="#556">{workers} {noun}</text>'
    )
