"""Links of all pages, and pages that sources name, lead somewhere: files exist, and so do the headings of #anchors.

    links_test.py            checks this repository, after what the check does with planted faults
"""
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = "kernels|collectives|model|optim|runtime|jobs|tests"
LINK = re.compile(r"!?\[[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
IMAGE = re.compile(r"<(?:img|source|a)\s[^>]*?(?:src|srcset|href)=\"([^\"]+)\"")
# In pages, a file in backticks: `jobs/cluster.md`, or beside the page `network.md`
NAMED = re.compile(rf"`((?:{FOLDERS})/[\w./-]+\.\w+|\w[\w./-]*\.md)`")
# In sources, a page by its path
NAMED_PAGE = re.compile(rf"(?<![\w/.])((?:{FOLDERS})/[\w./-]+\.md)\b")
SOURCES = {".h", ".cpp", ".cu", ".cuh", ".cmake", ".py", ".sh", ".sbatch", ".pbs", ".tsv", ".eb", ".def", ".txt"}
DATED = re.compile(r"^jobs/bench/results/20")  # records stay as they were written: what they name may have gone


def slug(heading):
    """The anchor that GitHub and GitLab make of a heading."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def without_blocks(text):
    return re.sub(r"(?ms)^\s*```.*?^\s*```\s*$", lambda block: "\n" * block[0].count("\n"), text)


def anchors_of(page):
    found, counts = set(), {}
    for line in without_blocks(page.read_text(encoding="utf-8")).splitlines():
        heading = re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if heading:
            name = slug(heading[1])
            found.add(name if name not in counts else f"{name}-{counts[name]}")
            counts[name] = counts.get(name, 0) + 1
        found.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line))
    return found


def files_of(root):
    """What belongs to the repository, new files too; all files where there is no git."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True,
                            check=False)
    names = listed.stdout.splitlines() if listed.returncode == 0 else [
        str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()]
    return [name for name in names if (root / name).is_file()]


def faults_of(root):
    faults = []

    def check(place, name, here):
        path, _, anchor = name.partition("#")
        target = (here / path) if path else None
        if target is not None and not target.exists():
            faults.append(f"{place}: {name} does not exist")
        elif anchor and (target is None or target.suffix == ".md"):
            page = target or root / place.split(":")[0]
            if anchor not in anchors_of(page):
                faults.append(f"{place}: {name}: that page has no such heading")

    for name in files_of(root):
        file = root / name
        if file.suffix == ".md":
            lines = without_blocks(file.read_text(encoding="utf-8")).splitlines()
            for number, line in enumerate(lines, 1):
                bare = re.sub(r"`[^`]*`", "", line)
                for target in LINK.findall(bare) + LINK.findall(line) + IMAGE.findall(bare):
                    if not re.match(r"[a-z]+:", target):
                        check(f"{name}:{number}", target, file.parent)
                if DATED.match(name) or name == "CHANGELOG.md":
                    continue
                for target in NAMED.findall(line):
                    if not (file.parent / target).exists() and not (root / target).exists():
                        faults.append(f"{name}:{number}: {target} does not exist")
        elif file.suffix in SOURCES and name != "tests/links_test.py":
            for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                for target in NAMED_PAGE.findall(line):
                    if not (root / target).exists():
                        faults.append(f"{name}:{number}: {target} does not exist")
    return sorted(set(faults))


class Links(unittest.TestCase):
    def planted(self, **files):
        with tempfile.TemporaryDirectory(prefix="tessera-links-") as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                path = root / name.replace("__", "/").replace("_", ".")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return faults_of(root)

    def test_what_is_there_is_found(self):
        self.assertEqual(self.planted(
            a_md="# One `two`\n[x](jobs/b.md#a-page-of-its-own) [y](#one-two) ![z](jobs/c.svg) `b.md`\n[web](https://x.y)\n",
            jobs__b_md="## A page, of its own\n", jobs__c_svg="", b_md="", kernels__d_h="// jobs/b.md\n"), [])

    def test_what_is_missing_is_named(self):
        self.assertEqual(self.planted(
            a_md="[x](b.md)\n[y](c.md#two)\n[z](#none)\n`jobs/d.md`\n<img src=\"e.png\">\n", c_md="# One\n",
            kernels__d_h="\n// jobs/f.md\n"),
            ["a.md:1: b.md does not exist", "a.md:2: c.md#two: that page has no such heading",
             "a.md:3: #none: that page has no such heading", "a.md:4: jobs/d.md does not exist",
             "a.md:5: e.png does not exist", "kernels/d.h:2: jobs/f.md does not exist"])

    def test_blocks_are_no_links(self):
        self.assertEqual(self.planted(a_md="```text\n[x](b.md)\n```\n"), [])

    def test_this_repository(self):
        self.assertEqual(faults_of(ROOT), [])


if __name__ == "__main__":
    unittest.main()
