"""The sentence encoder from its wheel, through the libraries that chapter 07 uses."""

from __future__ import annotations

from lumen import assets


def test_minilm_finds_the_paraphrase_through_faiss():
    import faiss
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(assets.path("minilm")), device="cpu", local_files_only=True)
    known = ["How do I reset my password?", "What is the boiling point of water?", "Who wrote Hamlet?"]
    vectors = encoder.encode(known, normalize_embeddings=True)
    assert vectors.shape == (3, 384)
    index = faiss.IndexFlatIP(384)
    index.add(vectors)
    scores, found = index.search(encoder.encode(["I forgot my password"], normalize_embeddings=True), 3)
    assert found[0, 0] == 0 and scores[0, 0] > 0.6 > scores[0, 1]
