"""The commands in the documentation exist, with every option that is shown; blocks marked sh run as they stand."""
import glob
import os
import re
import subprocess
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROGRAM = os.environ.get("SPARSCALE_PROGRAM", "")
# Its blocks need PyTorch: tests/capture/tutorial_test.py.
ELSEWHERE = ("tutorial.md",)


def pages():
    return [os.path.join(ROOT, "README.md")] + sorted(glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True))


def shown_commands(text):
    """Lines of indented blocks and code in running text that call the program."""
    return re.findall(r"^ {4}\$? ?sparscale (.*)$", text, re.M) + re.findall(r"`sparscale ([^`\n]*)`", text)


def help_of(words, known={}):
    if words not in known:
        known[words] = subprocess.run([PROGRAM, *words, "--help"], capture_output=True, text=True, check=False)
    return known[words]


@unittest.skipUnless(PROGRAM, "SPARSCALE_PROGRAM is not set")
class Commands(unittest.TestCase):
    def test_commands_and_options_exist(self):
        commands = options = 0
        for page in pages():
            with open(page, encoding="utf-8") as file:
                text = file.read()
            for command in shown_commands(text):
                command = command.split(" -- ")[0]  # what follows is another program's
                words = re.split(r"\s+", command.strip())
                if not words or not re.fullmatch(r"[a-z]+", words[0]):
                    continue
                path = [words[0]]
                # A second word is a subcommand where the first has some.
                if len(words) > 1 and "SUBCOMMAND" in help_of((words[0],)).stdout and re.fullmatch(r"[a-z-]+", words[1]):
                    path.append(words[1])
                shown = help_of(tuple(path))
                place = f"{os.path.relpath(page, ROOT)}: sparscale {command}"
                self.assertEqual(shown.returncode, 0, place)
                commands += 1
                # What stands after -- is for another program.
                for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", re.split(r"\s--\s", command)[0]):
                    self.assertRegex(shown.stdout, re.escape(option) + r"(?![\w-])", place)
                    options += 1
        self.assertGreaterEqual(commands, 25)
        self.assertGreaterEqual(options, 20)

    def test_blocks_run(self):
        for page in pages():
            if os.path.basename(page) in ELSEWHERE:
                continue
            with open(page, encoding="utf-8") as file:
                blocks = re.findall(r"^```sh\n(.*?)^```$", file.read(), re.M | re.S)
            with tempfile.TemporaryDirectory() as folder:
                environment = {**os.environ, "SPARSCALE": ROOT, "PATH": os.pathsep.join([os.path.dirname(PROGRAM), os.environ["PATH"]])}
                for block in blocks:
                    done = subprocess.run(["bash", "-eu", "-o", "pipefail", "-c", block], cwd=folder, env=environment, capture_output=True, text=True, check=False)
                    self.assertEqual(done.returncode, 0, f"{os.path.relpath(page, ROOT)}:\n{block}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    unittest.main()
