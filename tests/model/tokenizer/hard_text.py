"""Text that is hard to tokenize, made from a seed: scripts, emoji, marks, control characters, any UTF-8."""

import glob
import os
import random
import sysconfig
import unicodedata

CONTRACTIONS = ["'s", "'S", "'t", "'re", "'VE", "'m", "'ll", "'Ll", "'d", "'\u017f", "\u2019s", "it's", "I'LL"]
SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u180e", "\u200b", "\x0b", "\x85", "\r", " \n ", "\n\n\n"]
EMOJI = ["\U0001f600", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2764\ufe0f", "\U0001f1e9\U0001f1ea", "1\ufe0f\u20e3"]
RANGES = {
    "chinese": [(0x4E00, 0x9FA5)] * 12 + [(0x3000, 0x3020), (0xFF00, 0xFF20)],
    "japanese": [(0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5)],
    "korean": [(0xAC00, 0xD7A3)] * 8 + [(0x1100, 0x11FF)],
    "arabic": [(0x0620, 0x064A)] * 6 + [(0x064B, 0x0669)],
    "hindi": [(0x0904, 0x0939)] * 3 + [(0x093A, 0x094F), (0x0966, 0x096F)],
    "thai": [(0x0E01, 0x0E30)] * 3 + [(0x0E31, 0x0E4E)],
    "cyrillic": [(0x0410, 0x044F)],
    "hebrew": [(0x05D0, 0x05EA)] * 4 + [(0x0591, 0x05C7)],
    "latin": [(0x61, 0x7A)] * 6 + [(0xC0, 0x24F)],
    "marks": [(0x61, 0x7A), (0x0300, 0x036F), (0x1AB0, 0x1ABE), (0x0591, 0x05AF)],
}


def is_unicode14(code):
    """A character, assigned in the version that Python 3.11 knows."""
    return unicodedata.category(chr(code)) not in ("Cn", "Cs")


def any_character(rng):
    while True:
        code = rng.choice((rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x110000)))
        if is_unicode14(code):
            return chr(code)


def of_script(rng, name, length):
    out = []
    while len(out) < length:
        low, high = rng.choice(RANGES[name])
        code = rng.randrange(low, high + 1)
        if is_unicode14(code):
            out.append(chr(code))
        if rng.random() < 0.18:
            out.append(rng.choice((" ", " ", " ", ", ", ". ", "\n", "1", "-")))
    return "".join(out)


def ascii_text(rng, length):
    words = ["the", "The", "of", "and", "x1", "HTTPServer", "foo_bar", "==", "->", "{", "}", "();", "//", "#", "12345", "3.14", "0x1F", "don't"]
    out = []
    for _ in range(length // 5 + 1):
        out.append(rng.choice(words) if rng.random() < 0.5 else "".join(chr(rng.randrange(32, 127)) for _ in range(rng.randrange(1, 9))))
        out.append(rng.choice((" ", " ", " ", "", "\n", "    ", "\t")))
    return "".join(out)


def files_of_this_machine(rng, most):
    """English and code: Python's own library and the licences; many languages: Django's translations. Parts of them."""
    where = sysconfig.get_paths()
    paths = sorted(glob.glob(f"{where['stdlib']}/**/*.py", recursive=True) + glob.glob("/usr/share/common-licenses/*")
                   + glob.glob(f"{where['purelib']}/django/**/*.po", recursive=True))
    rng.shuffle(paths)
    total = 0
    for path in paths:
        if total >= most:
            return
        try:
            with open(path, encoding="utf-8", newline="") as file:
                text = file.read()
        except (UnicodeDecodeError, OSError):
            continue
        total += len(text)
        yield text


def soup(rng, tokens, length):
    """Random tokens of a vocabulary: words of all its languages, in no order."""
    return "".join(rng.choice(tokens) for _ in range(length))


def documents(seed, megabytes, vocabulary, special):
    """`vocabulary`: token texts; `special`: contents of special tokens. Yields documents of about `megabytes` in all."""
    rng = random.Random(seed)
    budget = int(megabytes * 1e6)
    runs = min(1_000_000, budget // 40)
    fixed = ["", " ", "\n", "a", "\x00", "\u0301", special[0], special[0] * 3, " " * runs, "a" * runs, "\n" * runs,
             "1" * runs, "\u4e2d" * (runs // 3), " \n" * (runs // 2), "ab" * (runs // 2), "." * runs,
             "".join(CONTRACTIONS), " ".join(special)]
    done = 0
    for text in fixed:
        yield text
        done += len(text.encode())
    for text in files_of_this_machine(rng, budget // 4):
        yield text
        done += len(text.encode())
    while done < budget:
        kind = rng.randrange(8)
        length = int(rng.lognormvariate(6, 1.5)) % 20000 + 1
        if kind == 0:
            text = ascii_text(rng, length)
        elif kind in (1, 2):
            text = of_script(rng, rng.choice(sorted(RANGES)), length)
        elif kind == 3:
            text = "".join(any_character(rng) for _ in range(length))
        elif kind == 4:
            pieces = CONTRACTIONS + SPACES + EMOJI + special + ["a", "B", "1", "é", "e\u0301", ".", "\u4e2d"]
            text = "".join(rng.choice(pieces) for _ in range(length))
        elif kind == 5:
            text = "".join(chr(rng.choice((rng.randrange(32), rng.randrange(0x7F, 0xA0), 97, 32))) for _ in range(length))
        else:
            text = soup(rng, vocabulary, length)
        yield text
        done += len(text.encode())
