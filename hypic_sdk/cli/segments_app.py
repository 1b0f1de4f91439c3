"""The commands below `hypic segments` and their flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hypic_sdk.cli.options import KeyOption, UrlOption
from hypic_sdk.errors import RequestError

segments_app = typer.Typer(
    no_args_is_help=True, help="What a server has registered; files are put there by `add`."
)

NamesArgument = Annotated[list[str], typer.Argument(help="Segment ids or external ids.")]


@segments_app.command()
def add(
    paths: Annotated[list[Path], typer.Argument(help="Folders and text files.")],
    warm: Annotated[bool, typer.Option("--warm", help="Compute them now.")] = False,
    pattern: Annotated[
        str, typer.Option("--glob", help="Which files of a folder are taken.")
    ] = "**/*",
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Register files; again, it costs nothing, and edited ones replace what they said before.

    A file's external id is its path relative to the folder.
    """
    from hypic_sdk.cli.segments import run_add
    from hypic_sdk.client import Hypic

    with Hypic(url, api_key=api_key) as client:
        run_add(Console(markup=False), client, paths, pattern=pattern, and_warm=warm)


@segments_app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Every registered segment and its state."""
    from hypic_sdk.cli.segments import run_list
    from hypic_sdk.client import Hypic

    with Hypic(url, api_key=api_key) as client:
        run_list(Console(markup=False), client, as_json=as_json)


@segments_app.command()
def show(
    name: Annotated[str, typer.Argument(help="A segment id or external id.")],
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """All that is known about one segment, as JSON."""
    from hypic_sdk.cli.segments import run_show
    from hypic_sdk.client import Hypic

    with Hypic(url, api_key=api_key) as client:
        run_show(Console(markup=False), client, name)


@segments_app.command()
def rm(names: NamesArgument, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Forget segments: texts, entries, and every chain that contains them."""
    from hypic_sdk.cli.segments import run_rm
    from hypic_sdk.client import Hypic

    with Hypic(url, api_key=api_key) as client:
        run_rm(Console(markup=False), client, names)


@segments_app.command("warm")
def warm_(
    names: Annotated[list[str] | None, typer.Argument(help="Segment ids or external ids.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Whatever is registered.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Compute registered segments now, with a progress bar."""
    from hypic_sdk.cli.segments import every_segment, find_all, run_warm
    from hypic_sdk.client import Hypic

    if bool(names) == everything:
        raise RequestError("name segments, or take --all")
    with Hypic(url, api_key=api_key) as client:
        segments = list(every_segment(client)) if everything else find_all(client, names or ())
        run_warm(Console(markup=False), client, segments)
