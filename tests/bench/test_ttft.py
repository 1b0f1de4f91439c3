"""The table of TTFT measures documents of the length that it names, as hits and from nothing."""

from __future__ import annotations

import random

from hypic_sdk.bench.ttft import ROOM_TOKENS, draw_document, grid, measure
from hypic_sdk.offline import LocalHypic


def test_cells_fit_into_the_window():
    assert [*grid(128 + ROOM_TOKENS - 1)] == []
    assert [*grid(256 + ROOM_TOKENS)] == [(128, 1), (128, 2), (256, 1)]
    assert all(length * count + ROOM_TOKENS <= 8192 for length, count in grid(8192))


def test_a_cell_is_what_its_name_says():
    with LocalHypic() as local:
        text = draw_document(local, 200, random.Random(1))
        assert 150 < local.tokenize(prompt=text).count <= 200
        cell = measure(local, 200, 3, num_runs=2)
        assert 450 < cell.prompt_tokens < 600 + ROOM_TOKENS
        # seams and the words around the documents, and no document
        assert cell.computed_tokens < cell.prompt_tokens / 3
        assert cell.cached_ms.num_runs == cell.recomputed_ms.num_runs == 2
        # nothing of a cell is left for the next
        assert local.segments.list().data == []
        assert local.cache.stats().num_segments == 0
