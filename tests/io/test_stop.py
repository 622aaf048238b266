"""T43: stop sequences are found wherever they start, and nothing of them is shown."""

from __future__ import annotations

import random
import time
from itertools import chain

import pytest

from lumen.io.stop import StopMatcher


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Look at every prefix of `text`: the first that ends in a stop decides; the longest such stop is cut off."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(matcher: StopMatcher, chunks: list) -> tuple[list, object]:  # type: ignore[type-arg]
    out, stop = [], None
    for chunk in chunks:
        emit, stop = matcher.feed(chunk)
        out.append(emit)
        if stop is not None:
            return out, stop
    return [*out, matcher.finish()], stop


def test_stop_1_2_is_found_in_1_1_2() -> None:
    """Starting over after the second 1 would miss it (litgpt #2302)."""
    assert run(StopMatcher([[1, 2]]), [[1], [1], [2]]) == ([[], [1], []], (1, 2))


def test_the_stop_that_is_complete_first_wins() -> None:
    """1 might begin [1, 3]; when 2 comes it does not, and it belongs to the answer."""
    assert run(StopMatcher([[1, 3], [2]]), [[1], [2]]) == ([[], [1]], (2,))


def test_a_prefix_of_a_stop_never_leaks_and_is_released_when_it_is_none() -> None:
    matcher = StopMatcher(["\nUser:"])
    assert matcher.feed("Hi\nUs") == ("Hi", None)
    assert matcher.feed("ed\nUser") == ("\nUsed", None)
    assert matcher.feed(": x") == ("", "\nUser:")
    assert matcher.feed("more") == ("", "\nUser:")
    assert matcher.finish() == ""


def test_what_was_held_back_comes_at_the_end() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("the EN") == ("the ", None)
    assert matcher.finish() == "EN"


def test_of_stops_that_end_together_the_longest_is_cut_off() -> None:
    assert run(StopMatcher(["c", "bc"]), ["abc"]) == ([("a")], "bc")


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_naive_search_for_any_stops_and_any_chunks(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(1000):
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        text = "".join(rng.choices("abc", k=rng.randint(0, 12)))
        chunks, rest = [], text
        while rest:
            n = rng.randint(0, 4)
            chunks.append(rest[:n])
            rest = rest[n:]
        out, stop = run(StopMatcher(stops), chunks)
        assert ("".join(out), stop) == naive(text, stops), (stops, chunks)
        ids, found = run(StopMatcher([list(map(ord, s)) for s in stops]), [list(map(ord, c)) for c in chunks])
        assert ("".join(map(chr, chain(*ids))), found and "".join(map(chr, found))) == naive(text, stops)


def test_nothing_that_is_shown_could_still_belong_to_a_stop() -> None:
    rng = random.Random(9)
    stops = ["aab", "aaab", "ba"]
    for _ in range(500):
        text = "".join(rng.choices("ab", k=15))
        matcher, shown = StopMatcher(stops), ""
        for i, character in enumerate(text):
            emit, stop = matcher.feed(character)
            shown += emit
            assert naive(text, stops)[0].startswith(shown)
            if stop:
                break
            held = text[len(shown) : i + 1]
            assert held == "" or any(s.startswith(held) for s in stops), "held longer than needed"


def test_time_is_linear_in_the_text() -> None:
    """A quadratic search takes a quarter of an hour here: 200,000 characters, each beginning a stop of 5,000."""
    matcher = StopMatcher(["a" * 5000 + "b"])
    start = time.process_time()
    shown = "".join(matcher.feed("a")[0] for _ in range(200_000))
    assert len(shown) == 195_000
    assert time.process_time() - start < 60


def test_no_stops_let_everything_through() -> None:
    assert run(StopMatcher([]), ["ab", "c"]) == (["ab", "c", ""], None)
    assert run(StopMatcher([]), [[1, 0], [2]]) == ([[1, 0], [2], []], None)


def test_text_against_stops_of_ids_is_an_error_not_a_miss() -> None:
    with pytest.raises(ValueError, match="strings match text"):
        StopMatcher([[1, 2]]).feed("12")


@pytest.mark.parametrize("stops", [[""], ["a", ""], [[]], ["a", [1]], "abc"])
def test_stops_that_make_no_sense_are_refused(stops: list) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=r"[sS]top"):
        StopMatcher(stops)
