"""What pyproject.toml and CHANGELOG.md say, in pages, so that it is said once.

A page writes ``@requires-python@``, ``@dependencies@``, ``@extras@`` or
``@changelog@`` on a line or in one.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def read_pyproject():
    """The table ``[project]`` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]


def split_requirement(requirement):
    """Name and versions: ``"a>=1,<2"`` gives ``("a", ">=1,<2")``."""
    name = re.match(r"[\w.-]+", requirement)[0]
    return name, requirement.removeprefix(name).strip() or "any"


def csv_table(header, rows):
    """A table as reStructuredText; cells hold no double quotes."""
    lines = [", ".join(f'"{cell}"' for cell in row) for row in rows]
    head = ", ".join(f'"{cell}"' for cell in header)
    return "\n   ".join([f".. csv-table::\n   :header: {head}\n", *lines])


def dependencies_table(project):
    """Packages that every installation needs, with their versions."""
    rows = map(split_requirement, project["dependencies"])
    cells = [(f"``{name}``", f"``{versions}``") for name, versions in rows]
    return csv_table(["Package", "Versions"], cells)


def extras_table(project):
    """Extras, with what each brings."""
    rows = []
    for extra, requirements in project["optional-dependencies"].items():
        rows.append((f"``{extra}``", ", ".join(f"``{part}``" for part in requirements)))
    return csv_table(["Extra", "Installs"], rows)


def as_rst(markdown):
    """The changelog's kind of Markdown (headings, lists, links) as reStructuredText."""
    text = re.sub(r"^# .*\n", "", markdown)
    text = re.sub(r"\[([^]]+)\]\(([^)]+)\)", r"`\1 <\2>`__", text)
    for level, mark in (("###", "^"), ("##", "-")):
        text = re.sub(
            rf"^{level} (.*)$",
            lambda match, mark=mark: f"{match[1]}\n{mark * len(match[1])}",
            text,
            flags=re.M,
        )
    return text


def fill_in(app, docname, source):
    """Replace the placeholders of a page."""
    if "@" not in source[0]:
        return
    project = read_pyproject()
    values = {
        "requires-python": f"``{project['requires-python']}``",
        "dependencies": dependencies_table(project),
        "extras": extras_table(project),
        "changelog": as_rst((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")),
    }
    for name, value in values.items():
        source[0] = source[0].replace(f"@{name}@", value)


def always_outdated(app, env, added, changed, removed):
    """Pages to read anew in every build, since their sources lie elsewhere."""
    return ["install", "changelog"]


def setup(app):
    """Connect to the reading of pages."""
    app.connect("source-read", fill_in)
    app.connect("env-get-outdated", always_outdated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
