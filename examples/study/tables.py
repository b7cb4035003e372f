"""Tables and verdicts of the study, from the lines of its finished runs.

    python examples/study/tables.py
    python examples/study/tables.py exits angles
    python examples/study/tables.py --write

Prints all tables, or those named. `--write` puts them into the page of results, between
the markers of each, and draws the pictures of the page from the same lines.
"""

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import angle_tables
import cost_tables
import exit_tables
import setting_tables
from experiments import BASE, EXPERIMENTS, N_TEST, TASKS
from figures import PICTURES, draw_pictures, picture_file
from lookup import Runs
from paired import RULE
from table_text import table
from tasks import TASKS as PARTS
from tasks import read_lines

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "results" / "runs.jsonl"
PAGE = ROOT / "docs" / "results.md"
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
#: Says from how many lines the page was made; lines are only ever appended.
MADE_FROM = "Made from the first {} lines of `runs.jsonl`."


def setup(runs):
    """What was planned and what is there, and what all runs share."""
    rows = []
    for name, entry in EXPERIMENTS.items():
        there = [runs.of(name, setting) for setting in entry.settings]
        rows.append(
            [
                name,
                entry.kind,
                entry.part,
                len(entry.settings),
                len(entry.tasks),
                entry.seeds,
                entry.n_train,
                len(entry.settings) * len(entry.tasks) * entry.seeds,
                sum(map(len, there)),
            ]
        )
    header = ["experiment", "kind", "part", "settings", "tasks", "seeds"]
    header += ["training texts", "planned", "finished"]
    shared = [[f"`{name}`", f"`{value!r}`"] for name, value in BASE.items()]
    tasks = [[task, PARTS[task]] for task in TASKS]
    return MADE_FROM.format(len(runs.lines)), [
        table(header, rows),
        f"Scored texts: at most {N_TEST}, the same for every seed.",
        table(["task", "scored part"], tasks),
        "Settings of every run, unless an experiment or a method changes them:",
        table(["parameter", "value"], shared),
    ]


def rule(runs):
    """How intervals and verdicts come about."""
    return RULE, []


#: By the names of the markers: a function of `Runs` that returns sentences, and a list
#: of tables.
TABLES = {
    "setup": setup,
    "rule": rule,
    "angles": angle_tables.angles,
    "final": exit_tables.final,
    "exits": exit_tables.exits,
    "strategies": exit_tables.strategies,
    "ablation": exit_tables.ablation,
    "sensitivity": setting_tables.sensitivity,
    "heads": exit_tables.heads,
    "small": exit_tables.small,
    "tuned": cost_tables.tuned,
    "guarantee": cost_tables.guarantee,
    "rivals": cost_tables.rivals,
    "learning_rate": setting_tables.learning_rate,
    "long": setting_tables.long,
    "variants": setting_tables.variants,
    "selection": setting_tables.selection,
}


def block(name, runs):
    """Markdown of one section: verdicts, tables, pictures.

    Parameters
    ----------
    name : str
        In `TABLES`.
    runs : Runs

    Returns
    -------
    str
    """
    sentences, tables = TABLES[name](runs)
    pictures = [
        f"![{picture.alt}](images/{picture_file(key)})"
        for key, picture in PICTURES.items()
        if picture.section == name and picture.data(runs)
    ]
    return "\n\n".join(filter(None, [sentences, *tables, *pictures]))


def fill(page, runs):
    """The text of a page with its blocks made anew.

    Raises
    ------
    ValueError
        For a block that no table fills, or a table that has no block.
    """
    names = [match[2] for match in BLOCK.finditer(page)]
    if sorted(names) != sorted(TABLES):
        odd = sorted(set(names) ^ set(TABLES)) or names
        raise ValueError(
            f"Every table must stand in the page once, between <!-- table: NAME --> "
            f"and <!-- end -->; look at: {', '.join(odd)}"
        )
    return BLOCK.sub(lambda m: f"{m[1]}\n{block(m[2], runs)}\n\n{m[4]}", page)


def lines_of(page, lines):
    """The lines that a page was made from."""
    pattern = re.escape(MADE_FROM).replace(r"\{\}", r"(\d+)")
    match = re.search(pattern, page)
    if match is None:
        raise ValueError(f"The page must say {MADE_FROM!r}; write it anew.")
    return lines[: int(match[1])]


def main(arguments=None):
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TABLES))
    parser.add_argument("--write", action="store_true", help="into the page")
    parser.add_argument("--lines", default=RESULTS, help="default: %(default)s")
    parser.add_argument("--page", default=PAGE, type=Path, help="default: %(default)s")
    args = parser.parse_args(arguments)
    unknown = sorted(set(args.names) - set(TABLES))
    if unknown:
        parser.error(f"unknown {unknown}; choose from {', '.join(TABLES)}")
    runs = Runs(read_lines(args.lines))
    if args.write:
        text = fill(args.page.read_text("utf-8"), runs)
        draw_pictures(runs, args.page.parent / "images")
        args.page.write_text(text, "utf-8")
        return
    for name in args.names or TABLES:
        print(f"## {name}\n\n{block(name, runs)}\n")


if __name__ == "__main__":
    main()
