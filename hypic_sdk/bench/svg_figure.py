"""A scatter of a few labelled points with intervals, as an SVG text; no library is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, MARGIN = 760, 440, 64


@dataclass(frozen=True, slots=True)
class Point:
    """One setting; low and high are of y."""

    label: str
    x: float
    y: float
    low: float
    high: float


def scatter(points: Sequence[Point], title: str, x_label: str, y_label: str) -> str:
    """Points over linear axes.

    Raises:
        ValueError: no points.
    """
    if not points:
        raise ValueError("a figure of no points shows nothing")
    across = _Axis.of([p.x for p in points], MARGIN, WIDTH - MARGIN)
    up = _Axis.of([v for p in points for v in (p.low, p.high)], HEIGHT - MARGIN, MARGIN)
    marks = [
        f'<line x1="{across.at(p.x):.1f}" x2="{across.at(p.x):.1f}" y1="{up.at(p.low):.1f}" '
        f'y2="{up.at(p.high):.1f}" stroke="#999"/>'
        f'<circle cx="{across.at(p.x):.1f}" cy="{up.at(p.y):.1f}" r="4" fill="#06c"/>'
        f'<text x="{across.at(p.x) + 6:.1f}" y="{up.at(p.y) - 6:.1f}">{escape(p.label)}</text>'
        for p in points
    ]
    ticks = [
        f'<text x="{across.at(v):.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{v:g}</text>'
        for v in across.ticks()
    ] + [
        f'<text x="{MARGIN - 6}" y="{up.at(v) + 4:.1f}" text-anchor="end">{v:g}</text>'
        for v in up.ticks()
    ]
    left, bottom, right = MARGIN, HEIGHT - MARGIN, WIDTH - MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="24" text-anchor="middle" font-size="15">{escape(title)}</text>',
        f'<path d="M{left} {MARGIN}V{bottom}H{right}" fill="none" stroke="black"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 14}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>",
        *ticks,
        *marks,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float  # where `low` is drawn
    stop: float

    @classmethod
    def of(cls, values: Sequence[float], start: float, stop: float) -> _Axis:
        low, high = min(values), max(values)
        pad = 0.06 * (high - low) or max(abs(high), 1.0) * 0.1
        return cls(low - pad, high + pad, start, stop)

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        raw = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw)
        first = math.ceil(self.low / step)
        return [round(k * step, 12) for k in range(first, math.floor(self.high / step) + 1)]
