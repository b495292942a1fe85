"""What `cmake --install` puts where: programs that run, batch scripts, tools, documents whose links lead somewhere, and a
module file that finds all that by itself, also through a link."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["TESSERA_BIN"]).parent
VERSION = re.search(r"project\(tessera VERSION (\S+)",
                    (pathlib.Path(__file__).parents[2] / "CMakeLists.txt").read_text()).group(1)
# What a module's commands do, as lines `command words`.
READ_MODULE = """
foreach command {module-whatis conflict} {proc $command args {}}
foreach command {prepend-path setenv} {proc $command args "puts \\"$command \\$args\\""}
set ModulesCurrentModulefile [lindex $argv 0]
source $ModulesCurrentModulefile
"""


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory(prefix="tessera ü '")
        cls.addClassCleanup(scratch.cleanup)
        cls.prefix = pathlib.Path(scratch.name).resolve() / "installed"
        subprocess.run(["cmake", "--install", BUILD, "--prefix", cls.prefix], check=True, capture_output=True, text=True)
        cls.share, cls.documents = cls.prefix / "share" / "tessera", cls.prefix / "share" / "doc" / "tessera"

    def answers(self, *words):
        result = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False,
                                env=dict(os.environ, PATH=f"{self.prefix / 'bin'}:{os.environ['PATH']}"))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def test_programs_run(self):
        for name in ("train", "tokenize", "inspect", "report", "generate", "convert", "bench"):
            self.assertIn(VERSION, self.answers(self.prefix / "bin" / name, "--version"))

    def test_scripts_and_tools_are_there_and_run(self):
        for name in ("slurm/train.sbatch", "slurm/train-mpirun.sbatch", "slurm/array.sbatch", "slurm/chain.sh", "pbs/train.pbs",
                     "run-forever.sh", "finetune-chats.sh"):
            self.answers("bash", "-n", self.share / name)
        for name in ("hosts.example", "common.sh", "reframe/tessera_test.py", "reframe/settings.py"):
            self.assertTrue((self.share / name).is_file(), name)
        self.assertIn("--", self.answers(self.share / "bench" / "local_saves.py", "--help"))

    def test_documents_are_there_with_what_they_name(self):
        for name in ("README.md", "CHANGELOG.md", "LICENSE", "jobs/README.md", "jobs/cluster.md", "jobs/network.md",
                     "jobs/storage.md", "jobs/packages/README.md", "CONTRIBUTING.md", "jobs/guide/fine-tuning.md",
                     "jobs/guide/figures/memory.svg", "jobs/guide/figures/report.png", "runtime/checkpoint/format.md",
                     "runtime/data/token_file.md", "runtime/monitor/metrics.md"):
            self.assertTrue((self.documents / name).is_file(), name)
        for document in self.documents.rglob("*.md"):
            if document.name == "CHANGELOG.md":
                continue  # of earlier times too
            for name in re.findall(r"`((?:runtime|jobs)/[\w/.-]+\.md)`", document.read_text(encoding="utf-8")):
                self.assertTrue((self.documents / name).is_file(), f"{document}: {name}")
        for page in (self.documents / "README.md", self.documents / "CONTRIBUTING.md", *(self.documents / "jobs/guide").glob("*.md")):
            for name in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
                self.assertTrue((page.parent / name).exists(), f"{page}: {name}")

    @unittest.skipIf(shutil.which("tclsh") is None, "needs tclsh, to read the module file")
    def test_the_module_finds_its_folder_also_through_a_link(self):
        file = self.prefix / "share" / "modulefiles" / "tessera" / VERSION
        reader = self.prefix / "read module.tcl"
        reader.write_text(READ_MODULE)
        link = self.prefix / "site" / "tessera" / VERSION
        link.parent.mkdir(parents=True)
        link.symlink_to(file)
        for path in (file, link):
            lines = self.answers("tclsh", reader, path).splitlines()
            with self.subTest(path=path):
                self.assertEqual(lines, [f"prepend-path PATH {{{self.prefix}/bin}}", f"setenv TESSERA_SHARE {{{self.share}}}",
                                         f"setenv TESSERA_DOC {{{self.documents}}}"])


if __name__ == "__main__":
    unittest.main()
