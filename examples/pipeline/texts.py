"""Texts of a support desk, made by chance from a seed: a few thousand kinds of them.

Articles about the same trouble share words, so that searching has something to find. Some texts are
awkward on purpose: empty, long, with quotes, line breaks, and letters of other scripts.
"""

import random
from dataclasses import dataclass
from decimal import Decimal

PRODUCTS = ["router", "printer", "laptop", "headset", "thermostat", "camera", "speaker", "monitor"]
TROUBLES = [
    ("loses its wireless connection", "The {product} drops off the network every few minutes"),
    ("does not turn on", "No light comes on when the power button of the {product} is pressed"),
    ("overheats", "The case of the {product} gets hot and the fan is loud"),
    ("cannot be paired", "Bluetooth pairing with the {product} ends with a timeout"),
    ("shows a blank screen", "The display of the {product} stays black although it is running"),
    ("fails to update", "The firmware update of the {product} stops at {number} percent"),
    ("drains its battery", "The battery of the {product} is empty after {number} minutes"),
    ("makes a noise", "A rattling sound comes from the {product} at low volume"),
    ("forgets its settings", "After a restart the {product} asks for language and password again"),
    ("prints faded pages", "Colours are pale and lines are missing on paper from the {product}"),
]
REMEDIES = [
    "Restarting it helped for a day.",
    "Resetting it to factory settings made no difference.",
    "The cable was exchanged, and the socket was checked.",
    "Moving it away from the microwave oven solved the problem.",
    "A technician has replaced the power supply.",
    "We sent a new device and wait for the old one to return.",
    "Installing version {number} of the software fixed it.",
    "The warranty has expired, so the customer was offered a discount.",
]
CASE = "Case "
"""What a text's last word follows, if no other text has that word."""

STATES = ["open", "waiting", "solved", "closed"]
_AWKWARD = [
    "",
    'It\'s "quoted", with a\nline break and a \\ backslash',
    "Der Drucker verschmiert Umlaute: äöüß ÄÖÜ",
    "プリンターが紙詰まりを起こします",
    "naïve café — 50 % off 🎧",
]


@dataclass(frozen=True)
class Article:
    """The columns that a customer's text fills."""

    title: str
    body: str | None
    product: str
    state: str
    price: Decimal | None


def article(chance: random.Random) -> Article:
    """Return an article."""
    product = chance.choice(PRODUCTS)
    trouble, description = chance.choice(TROUBLES)
    parts = [description + ".", *chance.sample(REMEDIES, chance.randint(1, 3))]
    text = " ".join(parts).format(product=product, number=chance.randint(1, 99))
    body: str | None = text
    if chance.random() < 0.02:
        body = chance.choice([None, *_AWKWARD, text * 40])
    adjective = chance.choice(["New", "Old", "Second", "Office", "Kitchen", "Borrowed"])
    return Article(
        f"{adjective} {product} {trouble}", body, product, chance.choice(STATES), price(chance)
    )


def price(chance: random.Random) -> Decimal | None:
    """Return a price, or none for a twentieth."""
    return None if chance.random() < 0.05 else Decimal(chance.randint(0, 99_999)) / 100
