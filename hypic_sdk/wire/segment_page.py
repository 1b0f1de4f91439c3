"""A page of segments that goes on by itself, as `openai`'s pages do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any, final

from hypic_sdk.wire.segments import SegmentList, SegmentObject


@final
class SegmentPage:
    """Segments in the order of registration; iterated, those of the following pages too.

    A segment that is deleted meanwhile breaks nothing: every other is seen once.
    """

    def __init__(self, found: SegmentList, following: Callable[[str], SegmentPage]) -> None:
        """`following`: the page behind that id."""
        self._found = found
        self._following = following

    @property
    def data(self) -> list[SegmentObject]:
        """The segments of this page."""
        return self._found.data

    @property
    def has_more(self) -> bool:
        """Whether another page follows."""
        return self._found.has_more

    @property
    def last_id(self) -> str | None:
        """What to list `after` next; none of an empty page."""
        return self._found.last_id

    def next_page(self) -> SegmentPage | None:
        """The page that follows; none behind the last."""
        if not self.has_more or self.last_id is None:
            return None
        return self._following(self.last_id)

    def __iter__(self) -> Iterator[SegmentObject]:
        page: SegmentPage | None = self
        while page is not None:
            yield from page.data
            page = page.next_page()


@final
class AsyncSegmentPage:
    """`SegmentPage` for an event loop: `async for segment in page`."""

    def __init__(
        self, found: SegmentList, following: Callable[[str], Awaitable[AsyncSegmentPage]]
    ) -> None:
        """`following`: the page behind that id."""
        self._found = found
        self._following = following

    @property
    def data(self) -> list[SegmentObject]:
        """The segments of this page."""
        return self._found.data

    @property
    def has_more(self) -> bool:
        """Whether another page follows."""
        return self._found.has_more

    @property
    def last_id(self) -> str | None:
        """What to list `after` next; none of an empty page."""
        return self._found.last_id

    async def next_page(self) -> AsyncSegmentPage | None:
        """The page that follows; none behind the last."""
        if not self.has_more or self.last_id is None:
            return None
        return await self._following(self.last_id)

    async def __aiter__(self) -> AsyncIterator[SegmentObject]:
        page: AsyncSegmentPage | None = self
        while page is not None:
            for segment in page.data:
                yield segment
            page = await page.next_page()


@final
class ComingPage:
    """A page that is asked for once it is awaited, or iterated with `async for`."""

    def __init__(self, ask: Callable[[], Awaitable[AsyncSegmentPage]]) -> None:
        self._ask = ask

    def __await__(self) -> Generator[Any, None, AsyncSegmentPage]:
        return self._ask().__await__()

    async def __aiter__(self) -> AsyncIterator[SegmentObject]:
        async for segment in await self._ask():
            yield segment
