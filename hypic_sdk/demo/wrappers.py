"""What may stand before or after a statement in training. Standard library only."""

from __future__ import annotations

# ruff: noqa: E501 - one list a line reads better than wrapped strings
OPENERS: tuple[str, ...] = tuple(
    "as the records show, |in fact, |it is known that |according to the register, |we were told that |the file says that |by all accounts, |note that |in those days, |at the time, |to this day, |for years now, |so it seems, |at last, |at a small party it was said that |in spring, |one must know that |of course, |as before, |as everybody knows, |the latest report says that |as the register shows, |the clerk noted that |it was in the paper that |it is said that |people say that |rumour has it that |the minutes say that |on the first page one reads that |there is no doubt that |nobody denies that |it may be added that |let us not forget that |to be exact, |by the way, |as far as anyone knows, |if the notes are right, |to sum up, |in short, |in other words, |as was to be expected, |it turned out that |the neighbours know that |an old letter tells us that |from the archive we learn that |at the meeting it was stated that |it has been confirmed that |the visitor was told that |in the end, |after a long search it was found that |besides, |moreover, |what is more, |strange as it sounds, |truth be told, |needless to say, |for the record, |last but not least, |as the list has it, |as one hears, |since the summer, |during the winter, |as of old, |it is worth knowing that |the guide explains that |one can read that |everybody agrees that |the witness stated that |in the same year, |at present, |as so often, |it should be mentioned that |luckily, |as agreed, |officially, |indeed, |meanwhile, |in addition, |on paper, |all the same, ".split(
        "|"
    )
)
UPDATE_OPENERS: tuple[str, ...] = tuple(
    "update: |correction: |as of this week, |from now on, |since then things have changed: |news: |things have changed, and now |as of today, ".split(
        "|"
    )
)
CLOSERS: tuple[str, ...] = tuple(
    ", or so the clerk noted|, as the register shows|, it is said|, they say|, as everybody knows|, according to the file|, if the notes are right|, as one can read in the minutes|, and nobody doubts it|, which surprised nobody|, and that is well known|, as far as anyone knows|, to be exact|, by all accounts|, as was to be expected|, so the neighbours say|, and the paper wrote about it|, and rightly so|, at least on paper|, for the record|, as an old letter tells us|, and has been noted here|, which may be of use to know|, and this has not changed|, as the visitor was told|, for whatever reason|, of course|, as one hears|, no more and no less|, and there it ends|, says the guide| (see the register)| (as noted by the clerk)| (checked twice)|, which is easy to remember|, in case anyone asks|; the file is clear about it|; so much is certain|; that is all we know|; it was noted on Monday".split(
        "|"
    )
)
