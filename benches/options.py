"""The benchmark's options. Run by itself it only checks them, with nothing installed yet."""

import argparse
from pathlib import Path

SECTIONS = ("targets", "kept", "short", "cat", "numpy", "random", "list", "strings", "checkout", "peer", "hangar")
# Only when asked for: the first and the last are as long as all the others, the second needs polars.
APART = ("patterns", "arrow_view", "growth")


def arguments():
    parser = argparse.ArgumentParser(prog="benches/run", description="Measures npyfs; see the head of the script.")
    parser.add_argument("--quick", action="store_true",
                        help="32 MiB arrays, 10 000 datasets, 10^6 strings: shows that it runs")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="rounds of every row [5]")
    parser.add_argument("--mib", type=int, metavar="N", help="size of the arrays in MiB [512]")
    parser.add_argument("--count", type=int, metavar="N", help="datasets that are listed [100000]")
    parser.add_argument("--small", type=int, metavar="N", help="small arrays that are copied into a checkout [10000]")
    parser.add_argument("--strings", type=int, metavar="N", help="Arkouda strings [50000000]")
    parser.add_argument("--dir", type=Path, metavar="DIR",
                        help="where to make the temporary directory for the data; it is removed at the end")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON, too")
    parser.add_argument("--only", default=",".join(SECTIONS), metavar="LIST", help=f"of {','.join(SECTIONS + APART)} [all but the last two]")
    parser.add_argument("--limit", type=float, default=120, metavar="S", help="seconds that one run may take [120]")
    parser.add_argument("--peer-limit", type=float, default=30, metavar="S", help="the same for hdfuse [30]")
    asked = parser.parse_args()
    asked.mib = asked.mib or (32 if asked.quick else 512)
    asked.count = asked.count or (10_000 if asked.quick else 100_000)
    asked.strings = asked.strings or (1_000_000 if asked.quick else 50_000_000)
    asked.rows = 1_000_000 if asked.quick else 10_000_000
    asked.records = 100_000 if asked.quick else 1_000_000
    asked.small = asked.small or (1000 if asked.quick else 10_000)
    asked.only = asked.only.split(",")
    if unknown := set(asked.only) - {*SECTIONS, *APART}:
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    if min(asked.pairs, asked.mib, asked.count, asked.small, asked.strings) < 1:
        parser.error("--pairs, --mib, --count, --small and --strings start at 1")
    return asked


if __name__ == "__main__":
    arguments()
