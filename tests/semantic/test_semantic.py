"""The semantic cache: scopes, age, capacity, restarts, threads, and three gates that each say why."""

from __future__ import annotations

import random
import threading
import time

import pytest

from lumen.io.errors import BadFile
from lumen.sampling import SamplingParams
from lumen.semantic import IndexSpec, MiniLM, SemanticCache

from .fakes import BagOfWords, Clock

KINDS = (
    "flat",
    IndexSpec("ivf", lists=2, probes=2, train_from=80),
    IndexSpec("hnsw"),
    IndexSpec("pq", parts=8, bits=4, train_from=100),
)


def cache(**settings):
    return SemanticCache(BagOfWords(), **({"second_look": None, "threshold": 0.9} | settings))


@pytest.fixture(scope="module")
def minilm():
    return MiniLM(device="cpu")


@pytest.mark.parametrize("index", KINDS, ids=lambda kind: getattr(kind, "kind", kind))
def test_near_enough_is_a_hit_and_the_rest_says_how_far_it_was(index):
    kept = cache(index=index)
    for number in range(150):
        assert kept.put(f"alpha{number} beta{number} gamma{number}", str(number))
    look = kept.look("beta77 alpha77 gamma77")
    assert look.hit.answer == "77" and look.hit.score == pytest.approx(1) and look.rule == ""
    miss = kept.look("alpha77 delta epsilon zeta")
    assert miss.hit is None and miss.rule == "threshold" and "0.90 is wanted" in miss.reason
    assert kept.stats.hits == 1 and kept.stats.misses == 1 and kept.stats.refused["threshold"] == 1
    assert kept.stats.hit_rate == 0.5


@pytest.mark.parametrize("index", KINDS, ids=lambda kind: getattr(kind, "kind", kind))
def test_a_tenant_never_sees_another_ones_answer(index):
    kept, draw = cache(index=index, threshold=-1.0, candidates=3), random.Random(0)
    kept.put("the very question", "of bob", tenant="bob")
    assert kept.get("the very question", tenant="ann") is None  # at a threshold that lets everything through
    assert kept.look("the very question", tenant="ann").reason.startswith("threshold: nothing is stored")
    for number in range(120):  # the nearest of all are another's: they must not crowd out one's own
        kept.put(f"the very question {number}", "of bob", tenant="bob")
    kept.put("something else altogether", "of ann", tenant="ann")
    for _ in range(20):
        tenant = draw.choice(["ann", "bob"])
        assert kept.get("the very question", tenant=tenant).answer == f"of {tenant}"


def test_another_model_or_other_parameters_are_another_scope():
    kept = cache()
    kept.put("a question", "greedy", model="m", params=SamplingParams(temperature=0))
    assert kept.get("a question", model="m", params=SamplingParams(temperature=0)).answer == "greedy"
    assert kept.get("a question", model="m", params=SamplingParams(temperature=1)) is None
    assert kept.get("a question", model="n", params=SamplingParams(temperature=0)) is None


def test_age_capacity_deletion():
    clock = Clock()
    kept = cache(capacity=3, ttl=100, clock=clock)
    for name in "abc":
        kept.put(f"question {name}", name)
    clock.now += 50
    assert kept.get("question a").answer == "a"
    kept.put("question d", "d", ttl=10)
    assert kept.get("question b") is None or kept.get("question b").answer != "b"  # least recently used
    assert kept.delete("question c") and not kept.delete("question c") and not kept.delete("question b")
    clock.now += 10
    assert len(kept) == 1 and kept.look("question d").hit is None
    clock.now += 40
    assert len(kept) == 0 and kept.look("question a").reason.startswith("threshold: nothing is stored")
    assert kept._indexes == {}


def test_clearing_a_tenant_leaves_the_others():
    kept = cache()
    for tenant in ("ann", "bob"):
        kept.put("a question", f"of {tenant}", tenant=tenant)
    assert kept.clear("ann") == 1
    assert kept.get("a question", tenant="ann") is None
    assert kept.get("a question", tenant="bob").answer == "of bob"
    assert kept.clear() == 1 and len(kept) == 0


@pytest.mark.parametrize("index", KINDS, ids=lambda kind: getattr(kind, "kind", kind))
def test_random_use_agrees_with_a_dict_through_restarts(tmp_path, index):
    """Each question's words are its own, so the only near one is itself: a dict says what must come back."""
    draw, clock, model = random.Random(7), Clock(), {}
    settings = {"index": index, "path": tmp_path / "c", "clock": clock, "capacity": 10_000}
    kept = cache(**settings)
    for step in range(1200):
        name, tenant = str(draw.randrange(130)), draw.choice(["", "ann"])
        prompt, action = f"alpha{name} beta{name} gamma{name}", draw.random()
        if action < 0.5:
            ttl = draw.choice([None, 40.0])
            kept.put(prompt, f"{step}", tenant=tenant, ttl=ttl)
            model[prompt, tenant] = f"{step}", float("inf") if ttl is None else clock.now + ttl
        elif action < 0.8:
            wanted, expires = model.get((prompt, tenant), ("", 0.0))
            hit = kept.get(prompt, tenant=tenant)
            assert (hit.answer if hit else None) == (wanted if clock.now < expires else None)
        elif action < 0.9:
            _, expires = model.pop((prompt, tenant), ("", 0.0))
            assert kept.delete(prompt, tenant=tenant) == (clock.now < expires)
        elif action < 0.98:
            clock.now += 1
        else:
            kept.close()
            kept = cache(**settings)
    assert len(kept) == sum(clock.now < expires for _, expires in model.values())
    kept.close()


def test_a_file_of_another_encoder_or_kind_is_refused(tmp_path):
    cache(path=tmp_path / "c").close()
    with pytest.raises(BadFile, match=r'made with .*"bag".*this cache has .*"other bag"'):
        SemanticCache(BagOfWords(fingerprint="other bag"), path=tmp_path / "c")
    with pytest.raises(BadFile, match=r"made with .*32.*this cache has .*16"):
        SemanticCache(BagOfWords(width=16), path=tmp_path / "c")
    from lumen.semantic import ExactCache

    with pytest.raises(BadFile, match=r"made with .*semantic.*this cache has .*exact"):
        ExactCache(path=tmp_path / "c")


def test_an_encoder_that_lies_about_its_width_is_refused_and_nothing_is_kept():
    class Liar(BagOfWords):
        def encode(self, texts):
            return super().encode(texts)[:, :-1]

    kept = SemanticCache(Liar(), second_look=None)
    for call in (lambda: kept.put("a question", "x"), lambda: kept.get("a question")):
        with pytest.raises(ValueError, match=r"shape \(n, 32\) are wanted, got \(1, 31\)"):
            call()
    assert len(kept) == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"threshold": 1.1}, "between -1 and 1; got 1.1"),
        ({"threshold": float("nan")}, "between -1 and 1; got nan"),
        ({"candidates": 0}, "At least one candidate"),
        ({"capacity": 0}, "capacity 0"),
        ({"index": "tree"}, "no index kind 'tree'"),
    ],
)
def test_impossible_settings_are_sentences(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        cache(**settings)


@pytest.mark.parametrize("prompt", ["", "   \n", None, 3])
def test_no_text_is_a_sentence(prompt):
    kept = cache()
    for call in (lambda: kept.get(prompt), lambda: kept.put(prompt, "x")):
        with pytest.raises(ValueError, match="compares texts, and this is none"):
            call()


def test_a_question_longer_than_the_encoder_reads_is_neither_kept_nor_answered():
    kept = cache(threshold=-1)
    long = "same beginning " * 30
    assert not kept.put(long + "one end", "1") and len(kept) == 0
    kept.put("same beginning", "2")
    assert kept.look(long + "other end").rule == "length"


def test_threads_see_only_right_answers(tmp_path):
    kept, wrong = cache(path=tmp_path / "c", index=KINDS[1]), []

    def work(thread):
        draw = random.Random(thread)
        try:
            for number in range(60):
                kept.put(f"alpha{thread}x{number} beta{number} gamma{thread}", f"{thread} {number}")
                other, which = draw.randrange(3), draw.randrange(60)
                hit = kept.get(f"alpha{other}x{which} beta{which} gamma{other}")
                if hit is not None and hit.answer != f"{other} {which}":
                    wrong.append(hit)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(kept) == 180


def test_a_worse_candidate_may_pass_when_the_nearest_is_refused(minilm):
    kept = SemanticCache(minilm, threshold=0.5)
    kept.put("How do I not delete a file?", "Lock it.")
    kept.put("What's the command for deleting a file?", "rm")
    look = kept.look("How do I delete a file?")
    assert look.hit.answer == "rm"
    assert [rule for _, _, rule in look.candidates] == ["negation", ""]


@pytest.mark.parametrize("threshold", [-1.0, 0.0, 0.5, 0.9])
@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("How do I delete a file?", "How do I not delete a file?"),
        ("Which foods contain gluten?", "Which foods don't contain gluten?"),
        ("Is it safe to eat this mushroom?", "Isn't it unsafe to eat this mushroom?"),
        ("Can I drive with a licence?", "Can I drive without a licence?"),
    ],
)
def test_t64_a_negated_question_is_a_miss_whatever_the_threshold(minilm, threshold, stored, asked):
    for one, other in ((stored, asked), (asked, stored)):
        kept = SemanticCache(minilm, threshold=threshold)
        kept.put(one, "the answer")
        assert kept.get(other) is None


def test_without_the_second_check_the_encoder_takes_a_negation_for_a_paraphrase(minilm):
    plain, negated, paraphrase = minilm.encode(
        ["How do I delete a file?", "How do I not delete a file?", "What is the way to erase a file?"]
    )
    assert plain @ negated > plain @ paraphrase + 0.05
    blind = SemanticCache(minilm, threshold=0.85, second_look=None)
    blind.put("How do I delete a file?", "rm")
    assert blind.get("How do I not delete a file?").answer == "rm"
    assert blind.get("What is the way to erase a file?") is None


def test_a_follow_up_is_found_in_its_own_conversation_only():
    kept = cache()
    pizza, orchid = ["How do I bake a pizza?", "At 250 degrees."], ["How do I repot an orchid?", "In bark."]
    kept.put("How long does it take?", "Ten minutes.", context=pizza)
    assert kept.get("How long does it take?", context=pizza).answer == "Ten minutes."
    assert kept.get("How long does it take?", context=orchid) is None
    assert kept.get("How long does it take?") is None
    assert not kept.delete("How long does it take?") and kept.delete("How long does it take?", context=pizza)


def test_the_encoders_tokenizer_is_never_used_by_two_threads_at_once():
    class Fussy:
        """Notices a second caller while the first is inside, as tokenizers that say "Already borrowed" do."""

        def __init__(self):
            self.inside, self.overlapped = 0, False

        def encode(self, texts, **_):
            self.inside += 1
            time.sleep(0.002)
            self.overlapped |= self.inside > 1
            self.inside -= 1
            return [[1.0, 0.0]] * len(texts)

        def tokenizer(self, text, **_):
            return {"input_ids": self.encode(["x"])}

    encoder = object.__new__(MiniLM)
    encoder._model, encoder._lock, encoder._limit = Fussy(), threading.Lock(), 256
    jobs = [lambda: encoder.encode(["a"]), lambda: encoder.reads_whole("a")]
    threads = [threading.Thread(target=job) for job in jobs * 10]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not encoder._model.overlapped


def test_the_encoder_survives_two_threads_and_tells_texts_that_are_too_long(minilm):
    texts = [f"question number {number} " * (1 + number % 7) for number in range(24)]
    wanted, got, failed = minilm.encode(texts), {}, []

    def work(part):
        try:
            for number in range(part, len(texts), 2):
                got[number] = minilm.encode([texts[number]])[0]
                minilm.reads_whole(texts[number])
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert all(float(got[number] @ wanted[number]) > 0.9999 for number in range(len(texts)))
    assert minilm.reads_whole("word " * 254) and not minilm.reads_whole("word " * 255)
    same = minilm.encode(["word " * 300 + "yes", "word " * 300 + "no"])
    assert float(same[0] @ same[1]) > 0.9999  # why such texts are refused
    assert len(minilm.fingerprint) == 16 and minilm.width == 384
