"""The page at `/ui`: files of this package, and nothing of anybody's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from aiohttp import web

from hypic_sdk.server.site import site_of

PAGE = "/ui"
FOLDER = Path(__file__).resolve().parents[1] / "ui"

TYPES: Mapping[str, str] = MappingProxyType(
    {
        ".html": "text/html",
        ".css": "text/css",
        ".js": "text/javascript",
        ".svg": "image/svg+xml",
        ".txt": "text/plain",
    }
)
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        # no script but the package's own, none written into the page, and no call to anywhere else;
        # with trusted types a text can not become markup even by mistake
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
        "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
)


def is_page(path: str) -> bool:
    """Whether a path is the page's or one of its files', which are shown without a key."""
    return path == PAGE or path.startswith(f"{PAGE}/")


async def page(request: web.Request) -> web.Response:
    """`GET /ui`: pools, latest requests and a playground, for a browser."""
    return await _answer(request, "page.html")


async def file(request: web.Request) -> web.Response:
    """`GET /ui/{name}`: what the page is made of."""
    return await _answer(request, request.match_info["name"])


async def _answer(request: web.Request, name: str) -> web.Response:
    body = await site_of(request).waiting.run(_read, name)
    if body is None:
        raise web.HTTPNotFound
    return web.Response(
        body=body, content_type=TYPES[Path(name).suffix], charset="utf-8", headers=HEADERS
    )


def _read(name: str) -> bytes | None:
    """A file of the page, by its bare name; none: there is none."""
    # a name from the list of the folder can lead nowhere else
    if name not in {path.name for path in FOLDER.iterdir() if path.suffix in TYPES}:
        return None
    return (FOLDER / name).read_bytes()
