"""Labelled points or curves with intervals, as an SVG text; no library is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, MARGIN = 760, 440, 64
COLOURS = ("#06c", "#c30", "#393", "#939", "#960", "#555")


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
    return _framed(marks, across, up, title, x_label, y_label)


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one arm; their labels are not drawn."""

    name: str
    points: tuple[Point, ...]


def curves(lines: Sequence[Curve], title: str, x_label: str, y_label: str) -> str:
    """Curves over logarithmic axes, the first name on top of the legend.

    Raises:
        ValueError: no points, or one that is not above zero.
    """
    points = [point for line in lines for point in line.points]
    if not points:
        raise ValueError("a figure of no points shows nothing")
    if min(min(p.x, p.low) for p in points) <= 0:
        raise ValueError("a logarithmic axis has no zero")
    across = _Axis.of([p.x for p in points], MARGIN, WIDTH - MARGIN, is_log=True)
    up = _Axis.of([v for p in points for v in (p.low, p.high)], HEIGHT - MARGIN, MARGIN,
                  is_log=True)  # fmt: skip
    marks = []
    for number, line in enumerate(lines):
        colour, y = COLOURS[number % len(COLOURS)], MARGIN + 16 * number
        ordered = sorted(line.points, key=lambda p: p.x)
        path = " ".join(f"{across.at(p.x):.1f},{up.at(p.y):.1f}" for p in ordered)
        marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        marks += [
            f'<line x1="{across.at(p.x):.1f}" x2="{across.at(p.x):.1f}" y1="{up.at(p.low):.1f}" '
            f'y2="{up.at(p.high):.1f}" stroke="{colour}"/>'
            f'<circle cx="{across.at(p.x):.1f}" cy="{up.at(p.y):.1f}" r="3" fill="{colour}"/>'
            for p in ordered
        ]
        marks.append(f'<text x="{MARGIN + 10}" y="{y}" fill="{colour}">{escape(line.name)}</text>')
    return _framed(marks, across, up, title, x_label, y_label)


def _framed(
    marks: Sequence[str], across: _Axis, up: _Axis, title: str, x_label: str, y_label: str
) -> str:
    """A figure with axes, their ticks and labels around the marks."""
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
    is_log: bool = False  # low and high are logarithms to base 10

    @classmethod
    def of(
        cls, values: Sequence[float], start: float, stop: float, *, is_log: bool = False
    ) -> _Axis:
        if is_log:
            values = [math.log10(value) for value in values]
        low, high = min(values), max(values)
        pad = 0.06 * (high - low) or max(abs(high), 1.0) * 0.1
        return cls(low - pad, high + pad, start, stop, is_log)

    def at(self, value: float) -> float:
        value = math.log10(value) if self.is_log else value
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        if self.is_log:
            powers = range(math.floor(self.low), math.ceil(self.high) + 1)
            found = [m * 10.0**power for power in powers for m in (1, 2, 5)]
            return [v for v in found if self.low <= math.log10(v) <= self.high]
        raw = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw)
        first = math.ceil(self.low / step)
        return [round(k * step, 12) for k in range(first, math.floor(self.high / step) + 1)]
