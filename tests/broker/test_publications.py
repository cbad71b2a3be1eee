"""Publication ids: random in appearance, and made from an event's number with a key."""

from hypothesis import given
from hypothesis import strategies as st

from halley.broker.events import Publications, new_key

KEYS = st.integers(0, (1 << 106) - 1)


@given(KEYS, st.integers(0, (1 << 53) - 2))
def test_an_id_tells_its_place_to_whoever_has_the_key(key, before):
    """WAMP's ids are from 1 to 2^53; with the key, the log finds an event by its id without an index."""
    publications = Publications(key, before)
    publication = publications.next()
    assert 1 <= publication <= 1 << 53
    assert publications.number_of(publication) == before + 1


def test_each_log_has_a_key_of_its_own():
    assert new_key() != new_key()


def test_ids_do_not_repeat_and_look_like_no_sequence():
    """WAMP requires ids that are drawn from the whole range."""
    publications = Publications(0x2A7F_91C3_5D08_E64B_7A19_C0DE_F5)
    ids = [publications.next() for _ in range(10_000)]
    assert len(set(ids)) == 10_000
    assert min(ids) < 1 << 43 < 1 << 52 < max(ids)


@given(KEYS, st.integers(1, 2**53), st.lists(st.integers(-300, 300), max_size=20))
def test_ids_that_are_asked_for_together_are_the_same(key, first, behind):
    publications = Publications(key)
    for some in (behind, range(len(behind)), sorted(behind)):
        assert publications.ids_of(first, some) == [publications.id_of(first + far) for far in some]
