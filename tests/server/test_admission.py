"""Every place that is taken is given back, and no more are taken than there are."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from quire.server.admission import Admission, DrainingError, OverloadedError


def test_a_client_has_so_many_places_and_all_clients_have_so_many() -> None:
    admission = Admission(max_requests=3, max_client_requests=2)
    for _ in range(2):
        with ExitStack() as places:
            for client in ("a", "a", "b"):
                if client == "b":
                    with pytest.raises(OverloadedError, match="max-client-requests"), admission.enter("a"):
                        pass
                places.enter_context(admission.enter(client))
            with pytest.raises(OverloadedError, match="max-queued-requests"), admission.enter("b"):
                pass
            assert admission.num_unfinished == 3
        assert admission.num_unfinished == 0
    assert not admission._by_client, "clients that left are forgotten"


def test_a_request_that_fails_gives_its_place_back() -> None:
    admission = Admission(max_requests=1, max_client_requests=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), admission.enter("a"):
            raise ZeroDivisionError
    assert admission.num_unfinished == 0


def test_who_is_in_stays_while_it_drains() -> None:
    admission = Admission(max_requests=5, max_client_requests=5)
    with admission.enter("a"):
        admission.draining = True
        with pytest.raises(DrainingError), admission.enter("b"):
            pass
        assert admission.num_unfinished == 1
    assert admission.num_unfinished == 0
