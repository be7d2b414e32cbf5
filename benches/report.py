"""Rows of pairs: how they are measured, and how they are shown."""

import json
import statistics


class Row:
    """npyfs against one other way of doing the same, as pairs of seconds."""

    def __init__(self, section, what, state, against, *, work=0, unit="MB/s"):
        self.section, self.what, self.state, self.against = section, what, state, against
        self.work = work  # bytes moved by a run ("MB/s"), or operations in it ("each"), or 0: only seconds
        self.unit = unit
        self.pairs = []
        self.notes = {}  # "npyfs" or "other": why there is no time
        self.memory = None  # (rss, peak, processes) of the daemon: the most seen after a run
        self.other_work = None  # where the other one did fewer operations
        self.alone = False  # only npyfs does this; the pairs hold its time twice

    def note_memory(self, seen):
        if seen:
            self.memory = seen if self.memory is None else tuple(map(max, self.memory, seen))

    def ratio(self):
        """Median of the ratios of the pairs: below 1, npyfs is faster."""
        ratios = self.ratios()
        return statistics.median(ratios) if ratios else None

    def ratios(self):
        if self.alone:
            return []
        scale = (self.other_work or self.work) / self.work if self.work else 1
        return [a * scale / b for a, b in self.pairs]

    def side(self, k):
        if self.alone and k:
            return ""
        if not self.pairs:
            return self.notes.get(("npyfs", "other")[k], "-")
        seconds = statistics.median(pair[k] for pair in self.pairs)
        work = self.other_work if k and self.other_work else self.work
        if self.unit == "each" and work:
            return f"{duration(seconds / work):>8} each"
        if work:
            return f"{duration(seconds):>8} {work / seconds / 1e6:5.0f} MB/s"
        return f"{duration(seconds):>8}"

    def cells(self):
        ratios = self.ratios()
        shown = f"{factor(self.ratio())} ({factor(min(ratios))}-{factor(max(ratios))})" if ratios else ""
        memory = f"{self.memory[0]:.0f}/{self.memory[1]:.0f}" if self.memory else ""
        return [self.what, self.state, self.side(0), self.against, self.side(1), shown, str(len(self.pairs) or ""),
                memory]

    def json(self):
        sides = {}
        for k, key in enumerate(("npyfs", "other")):
            seconds = [pair[k] for pair in self.pairs]
            sides[key] = {"median_seconds": statistics.median(seconds) if seconds else None, "seconds": seconds,
                          "note": self.notes.get(key), "work": self.other_work if k and self.other_work else self.work}
        memory = dict(zip(("rss_mib", "peak_mib", "processes"), self.memory)) if self.memory else None
        return {"section": self.section, "what": self.what, "state": self.state, "against": self.against,
                "work_unit": "bytes" if self.unit == "MB/s" else "operations", **sides, "ratio": self.ratio(),
                "ratios": self.ratios(), "daemon_memory": memory}


def duration(seconds):
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 0.001:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.1f} us"


def factor(ratio):
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def measure(rows, ours, others, pairs, memory=lambda: None):
    """Fill rows: `ours()`, then each of `others`, again and again, `pairs` rounds. `rows[k]` is about `others[k]`.

    Who fails or hits a limit is not asked again: the row then has no pairs but says what happened."""
    for _ in range(pairs):
        open_rows = [(row, other) for row, other in zip(rows, others) if not row.notes]
        if not open_rows:
            return
        a = ours()
        for row, other in open_rows:
            row.note_memory(memory())
            b = other()
            if a.seconds is None or b.seconds is None:
                row.pairs = []
                row.notes = {side: sample.note if sample.seconds is None else f"{duration(sample.seconds):>8}"
                             for side, sample in (("npyfs", a), ("other", b))}
            else:
                row.pairs.append((a.seconds, b.seconds))


HEAD = ["what", "state", "npyfs", "against", "its time", "ratio (min-max)", "n", "MiB now/peak"]


def table(rows):
    cells = [row.cells() for row in rows]
    widths = [max([len(HEAD[k]), *(len(c[k]) for c, row in zip(cells, rows) if not row.notes)])
              for k in range(len(HEAD))]

    def line(parts, note=""):
        shown = [part.rjust(w) if head in ("n", "MiB now/peak") else part.ljust(w)
                 for part, w, head in zip(parts, widths, HEAD)]
        return "  ".join([*shown, note]).rstrip()

    lines = [line(HEAD), "  ".join("-" * w for w in widths)]
    section = None
    for c, row in zip(cells, rows):
        if row.section != section:
            section = row.section
            lines.append(f"[{section}]")
        # What happened takes the place of the last columns, whatever its length.
        lines.append(line(c[:4], c[4]) if row.notes else line(c))
    return "\n".join(lines)


def save(path, facts, rows, conditions):
    with open(path, "w") as out:
        json.dump({"facts": facts, "rows": [row.json() for row in rows], "conditions": conditions}, out, indent=1)
        out.write("\n")
