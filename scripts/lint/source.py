"""What the lints look at: the tracked files, and C++ text reduced to its structure."""
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

CPP_SUFFIXES = (".c", ".h", ".cpp", ".hpp", ".cu", ".cuh")
SCRIPT_SUFFIXES = (".py", ".cmake", ".sh")


@dataclass(frozen=True)
class File:
    path: str  # from the root of the repository
    data: bytes
    executable: bool = False

    @property
    def is_text(self):
        return b"\0" not in self.data[:8192]

    @property
    def text(self):
        return self.data.decode("utf-8", errors="replace")

    @property
    def is_verbatim(self):
        """Outputs of other programs, kept as they came."""
        return self.path.startswith(("tests/goldens/", "third_party/", "LICENSE"))

    @property
    def is_cpp(self):
        return self.path.endswith(CPP_SUFFIXES) and not self.is_verbatim

    @property
    def is_script(self):
        name = self.path.rsplit("/", 1)[-1]
        return name.endswith(SCRIPT_SUFFIXES) or name == "CMakeLists.txt" or self.data.startswith(b"#!")


def sample(path, text, executable=False):
    return File(path, text.encode(), executable)


def tracked_files(root):
    command = ["git", "ls-files", "-s", "-z"]
    listing = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
    files = []
    for entry in listing.decode().split("\0"):
        if not entry:
            continue
        mode, path = entry.split(" ", 1)[0], entry.split("\t", 1)[1]
        full = Path(root, path)
        if mode in ("100644", "100755") and full.is_file():  # no links; deleted files stay listed
            files.append(File(path, full.read_bytes(), mode == "100755"))
    return files


_TOKENS = re.compile(
    r"""//[^\n]*(?:\\\n[^\n]*)*            # line comment
      | /\*.*?\*/                         # block comment
      | R"(?P<tag>[^()\s\\]*)\(.*?\)(?P=tag)"  # raw string
      | "(?:\\.|[^"\\\n])*"               # string
      | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'  # character, not a digit separator
    """,
    re.VERBOSE | re.DOTALL,
)


def _blank(match):
    text = match.group(0)
    kept = "".join(c if c == "\n" else " " for c in text)
    return kept if text.startswith(("//", "/*")) else '"' + kept[1:-1] + '"'


def comments(text):
    """Yields (offset, comment) for each comment of C++ text; lines of `//` are separate comments."""
    for match in _TOKENS.finditer(text):
        if match.group(0).startswith(("//", "/*")):
            yield match.start(), match.group(0)


def without_comments_and_strings(text):
    """The same text, line for line, with comments and the contents of literals blanked."""
    return _TOKENS.sub(_blank, text)
