"""What penalties count, as a row's tokens grow."""

from __future__ import annotations

from quire.sampling.penalties import TokenCounts


def test_counts_that_grew_with_their_list_are_those_of_a_new_one() -> None:
    """Of the output 5 5 7 5 behind the prompt 5 6; a row that was preempted or forked counts anew."""
    token_ids = [5, 6, 5]
    grown = TokenCounts(token_ids, 2)
    for token_id in (5, 7, 5):
        grown.update()
        token_ids.append(token_id)
    grown.update()
    grown.update()
    new = TokenCounts(list(token_ids), 2)
    new.update()
    for counts in (grown, new):
        assert (list(counts.distinct), list(counts.in_output)) == ([5, 6, 7], [3, 0, 1])
