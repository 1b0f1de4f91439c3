"""Log-probabilities in the shapes of the wire."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.service.render import completion_logprobs, prompt_logprobs
from hypic_sdk.transport.messages import TokenLogprobs
from tests.prompt import tiny

TOKENIZER = tiny.tokenizer()
# ids whose texts are their own: halves of characters share one
IDS = [id_ for id_ in range(200) if TOKENIZER.token_text(id_).isascii()]


@st.composite
def told(draw: st.DrawFn) -> TokenLogprobs:
    """One token, and the best ones, among which it may or may not be."""
    best = draw(st.lists(st.sampled_from(IDS), max_size=5, unique=True))
    top = tuple((id_, -0.5 * place) for place, id_ in enumerate(best))
    chosen = draw(st.sampled_from(IDS))
    rank = best.index(chosen) + 1 if chosen in best else draw(st.integers(len(best) + 1, 999))
    return TokenLogprobs(chosen, dict(top).get(chosen, -9.0), rank, top)


@given(ones=st.lists(told(), max_size=4), num_top=st.integers(0, 5))
def test_the_chosen_token_is_among_its_alternatives(ones, num_top):
    shaped = completion_logprobs(ones, TOKENIZER, num_top, 0)
    for one, alternatives in zip(ones, shaped.top_logprobs, strict=True):
        wanted = {*one.top[:num_top], (one.token_id, one.logprob)}
        assert alternatives == {TOKENIZER.token_text(id_): value for id_, value in wanted}
        assert len(alternatives) <= num_top + 1


@given(ones=st.lists(told(), max_size=4))
def test_every_rank_is_told(ones):
    first, *shaped = prompt_logprobs(ones, TOKENIZER)
    assert first is None
    for one, alternatives in zip(ones, shaped, strict=True):
        assert alternatives[str(one.token_id)].rank == one.rank
        ids = [id_ for id_, _ in one.top]
        assert [alternatives[str(id_)].rank for id_ in ids] == [*range(1, len(ids) + 1)]
