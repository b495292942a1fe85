#!/usr/bin/env python3
"""The defaults of transformers' configuration classes, which tests/golden/config_defaults.json keeps:

    config_defaults.py             # installs the versions named there from PyPI and compares
    config_defaults.py --newest    # the same with the newest 4.x and 5.x
    config_defaults.py --write     # writes the file from the newest 4.x and 5.x

Each version gets a virtual environment of its own, which is thrown away; PyTorch is not needed. Ends with 1
at the first difference, and with 77 where PyPI cannot be reached.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import venv

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden/config_defaults.json"
MAJORS = ("4", "5")
SKIPPED = 77
# Runs inside the environment.
DUMP = """
import json, transformers
classes = {"qwen3": "Qwen3Config", "qwen2": "Qwen2Config", "llama": "LlamaConfig", "mistral": "MistralConfig"}
defaults = {}
for name, each in classes.items():
    fields = getattr(transformers, each)().to_dict()
    for reported in ("transformers_version", "_name_or_path"):
        fields.pop(reported, None)
    defaults[name] = fields
print(json.dumps({"version": transformers.__version__, "defaults": defaults}))
"""


class NoPackages(Exception):
    pass


def defaults_of(requirement):
    with tempfile.TemporaryDirectory(prefix="tessera-config-") as folder:
        venv.create(folder, with_pip=True)
        python = pathlib.Path(folder) / "bin/python"
        installed = subprocess.run([python, "-m", "pip", "install", "--quiet", requirement],
                                   capture_output=True, text=True, check=False)
        if installed.returncode != 0:
            raise NoPackages(f"pip cannot install {requirement}: {installed.stderr.strip().splitlines()[-1:]}")
        reported = subprocess.run([python, "-c", DUMP], capture_output=True, text=True, check=True)
    return json.loads(reported.stdout)


def text_of(table):
    """One line a family and version: a change of a default is one line of a diff."""
    blocks = []
    for version, families in table.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(families[name], sort_keys=True)}"
                           for name in families)
        blocks.append(f" {json.dumps(version)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def differences(kept, found):
    for family, fields in kept.items():
        for field in sorted(fields.keys() | found[family].keys()):
            before, after = fields.get(field, "(no field)"), found[family].get(field, "(no field)")
            if before != after:
                yield f"{family}: {field}: {before} in the table, {after} in transformers"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--newest", action="store_true")
    arguments = parser.parse_args()
    kept = {} if arguments.write else json.loads(GOLDEN.read_text())
    by_major = {version.split(".")[0]: version for version in kept}
    table = {}
    for major in MAJORS:
        newest = arguments.write or arguments.newest
        try:
            reported = defaults_of(f"transformers=={major + '.*' if newest else by_major[major]}")
        except NoPackages as error:
            print(f"skipped: {error}")
            return SKIPPED
        table[reported["version"]] = reported["defaults"]
        if not arguments.write:
            found = list(differences(kept[by_major[major]], reported["defaults"]))
            print("\n".join(found) or f"transformers {reported['version']}: as in the table")
            if found:
                return 1
    if arguments.write:
        GOLDEN.write_text(text_of(table))
        print(f"wrote {GOLDEN} from transformers {', '.join(table)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
