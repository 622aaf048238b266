"""Numbers and units: two questions ask the same thing only if every quantity in them is the same.

Lengths, masses, times and so on are compared in one unit each, so "90 minutes" equals "an hour and a half"
written as "1.5 hours", and 5 km is not 5 miles.
"""

from __future__ import annotations

import re

from .words import Word

_UNITS = """
    length   mm 0.001 millimeter 0.001 millimetre 0.001 cm 0.01 centimeter 0.01 centimetre 0.01 m 1 meter 1 metre 1
    length   km 1000 kilometer 1000 kilometre 1000 mile 1609.344 ft 0.3048 foot 0.3048 feet 0.3048 yard 0.9144
    mass     mg 0.001 g 1 gram 1 kg 1000 kilo 1000 kilogram 1000 lb 453.592 ounce 28.3495 oz 28.3495 ton 1e6
    volume   ml 0.001 milliliter 0.001 millilitre 0.001 l 1 liter 1 litre 1 gallon 3.78541 pint 0.473176
    volume   cup 0.236588 teaspoon 0.00492892 tablespoon 0.0147868
    time     sec 1 seconds 1 min 60 minute 60 h 3600 hr 3600 hour 3600 day 86400 week 604800
    calendar month 1 year 12 decade 120 century 1200
    data     kb 1e3 mb 1e6 gb 1e9 tb 1e12
    power    w 1 watt 1 kw 1000 kilowatt 1000
    degrees  celsius 1
    degrees-f fahrenheit 1
    angle    degree 1
    percent  percent 1
    dollar   dollar 1 usd 1
    euro     euro 1 eur 1
    pound    gbp 1
    yen      yen 1
    speed    mph 1.609344 kmh 1
    am       am 1
    pm       pm 1
"""
UNITS = {
    word: (kind, float(size))
    for line in _UNITS.strip().splitlines()
    for kind, *rest in [line.split()]
    for word, size in zip(rest[::2], rest[1::2], strict=True)
}
_SIGNS = {"$": "dollar", "€": "euro", "£": "gbp", "%": "percent", "¥": "yen"}
_COUNTED = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
_SPECIAL = {
    "half": 0.5,
    "quarter": 0.25,
    "double": 2,
    "twice": 2,
    "triple": 3,
    "thrice": 3,
    "dozen": 12,
    "once": 1,
}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1e6, "billion": 1e9}
_ROMAN = {
    "ii": 2,
    "iii": 3,
    "iv": 4,
    "v": 5,
    "vi": 6,
    "vii": 7,
    "viii": 8,
    "ix": 9,
    "x": 10,
    "xi": 11,
    "xii": 12,
}
VALUES: dict[str, float] = {
    **{word: float(value) for value, word in enumerate(_COUNTED.split()) if word != "one"},
    **{word: 20.0 + 10 * place for place, word in enumerate(_TENS.split())},
    **{word: float(place) for place, word in enumerate(_ORDINALS.split(), 1)},
    **_SPECIAL,
    **_SCALES,
}

Quantity = tuple[str, float]


def quantities(text: str, found: list[Word]) -> tuple[list[Quantity], list[Word]]:
    """Every number with its kind of unit ("" if none) and its value in that kind's base unit; the words left over."""
    signs = {word: _SIGNS[sign] for sign, word in re.findall(r"([$€£¥])\s?(\d[\d.,]*)", text)}
    signs |= {word: "percent" for word in re.findall(r"(\d[\d.,]*)\s?%", text)}
    result: list[Quantity] = []
    rest: list[Word] = []
    at = 0
    while at < len(found):
        value, after, attached = _number(found, at)
        if value is None:
            rest.append(found[at])
            at += 1
            continue
        unit = attached or signs.get(found[at].text, "")
        if not unit and after < len(found) and (near := _unit_word(found[after])):
            unit, after = near, after + 1
        kind, size = UNITS.get(unit, ("", 1.0))
        result.append((kind, float(f"{value * size:.6g}")))
        at = after
    return result, rest


def units(found: list[Word]) -> set[str]:
    """Names of physical units, with or without a number before them."""
    names = {_unit_word(word) for word in found if not word.capital or word.text in ("celsius", "fahrenheit")}
    return {name for name in names if name and len(name) > 2 and UNITS[name][0] not in ("calendar", "time")}


def _number(found: list[Word], at: int) -> tuple[float | None, int, str]:
    """The number that starts at word `at`: its value, the place behind it, a unit written onto it ("5kg")."""
    word = found[at]
    if word.is_number:
        match = re.fullmatch(r"(\d[\d.,:]*)([^\W\d_]*)", word.text)
        if match is None:
            return None, at + 1, ""
        digits, letters = match.groups()
        if letters in ("st", "nd", "rd", "th"):
            letters = ""
        if letters and letters not in UNITS:
            return None, at + 1, ""  # a name such as 4k or 3d
        value = _digits(digits)
        after = at + 1
        if after < len(found) and found[after].text in _SCALES:
            value, after = value * _SCALES[found[after].text], after + 1
        return value, after, letters
    if word.capital and word.text in _ROMAN and at:
        return float(_ROMAN[word.text]), at + 1, ""
    if word.text == "one" and at + 1 < len(found) and _unit_word(found[at + 1]):
        return 1.0, at + 1, ""
    if word.text in ("a", "an") and at + 1 < len(found) and (found[at + 1].text in ("dozen", *_SCALES)):
        return VALUES[found[at + 1].text], at + 2, ""
    if word.text == "second" and (at == 0 or found[at - 1].text in ("per", "a", "each", "every")):
        return None, at + 1, ""
    if word.text not in VALUES:
        return None, at + 1, ""
    value, after = VALUES[word.text], at + 1
    while after < len(found) and found[after].text in VALUES:
        more, scale = VALUES[found[after].text], found[after].text in _SCALES
        if not scale and not (value >= 20 and more < 10):
            break
        value, after = (value * more if scale else value + more), after + 1
    return value, after, ""


def _digits(text: str) -> float:
    """12:30 is a time of day; 1,000 and 1,000,000 have thousands marks; 1.5 and 1,5 a fraction."""
    if ":" in text:
        hours, minutes = (float(part.replace(",", "") or 0) for part in text.split(":")[:2])
        return hours + minutes / 60
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    text = text.replace(",", ".")
    whole, *rest = text.split(".")
    return float(f"{whole}.{''.join(rest)}" if rest else whole)


def _unit_word(word: Word) -> str:
    for name in (word.text, word.text.removesuffix("s"), word.text.removesuffix("es")):
        if name in UNITS:
            return name
    return ""
