"""Bytes as printable characters, so that every text has a vocabulary of characters (Radford et al. 2019, section
2.2)."""

from __future__ import annotations


def _byte_alphabet() -> dict[str, int]:
    """Printable Latin-1 characters stand for their own byte; the others get U+0100 and on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


ALPHABET = _byte_alphabet()


def spelled(token: str) -> bytes:
    """The bytes of a byte-level token; of one that was added as plain text, its own."""
    try:
        return bytes(ALPHABET[character] for character in token)
    except KeyError:
        return token.encode()
