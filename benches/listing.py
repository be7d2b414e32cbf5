"""Listing a group of very many datasets, against a directory of as many real files."""

from data import difference
from report import Row, measure
from system import COLD, ROOT, BenchError, Npyfs, drop, timed


class Listing:
    """Measures on `data.Many`."""

    def __init__(self, many, point, worker, pairs, limit, filesystem):
        self.many, self.point, self.worker, self.pairs, self.limit = many, point, worker, pairs, limit
        self.real = f"on {filesystem}"
        self.rows = {}

    @staticmethod
    def commands():
        return {"ls -l": ["ls", "-l"], "ls -U": ["ls", "-U"], "find -size": ["find"]}

    def command(self, what, folder):
        command = [*self.commands()[what], folder]
        if what == "find -size":
            command += ["-size", "+1M"]  # a stat of each, and nothing to print
        return timed(command, self.limit)

    def check(self):
        with Npyfs(self.many.store, self.point) as mount:
            wrong = difference(mount / "g", self.many.real)
        if wrong:
            raise BenchError(f"the mount's listing is not that of the real files: {wrong}")

    def all(self):
        section = f"listing {self.many.count} datasets of one group"
        self.check()
        yield from self.first(section)
        yield from self.later(section)

    def first(self, section):
        """In a new mount: reads the group from the file, and for that all object headers."""
        state = f"first, {COLD}"
        rows = [Row(section, "ls -l", state, f"ls -l {self.real}"), Row(section, "ls -l", state, "h5py shape, dtype")]
        mounting = Row(section, "npyfs mount", "", "")
        memory, times = [], []

        def ours():
            with Npyfs(self.many.store, self.point) as mount:
                times.append(mount.mount_seconds)
                drop(3)
                sample = self.command("ls -l", mount / "g")
                memory.append(mount.memory())
                return sample

        def real():
            drop(3)
            return self.command("ls -l", self.many.real)

        def h5py():
            drop(3)
            return self.worker.call(self.limit, op="h5_list", file=str(self.many.store), name="g")

        measure(rows, ours, [real, h5py], self.pairs, lambda: memory[-1])
        mounting.pairs = [(t, t) for t in times]
        mounting.alone = True
        self.rows["first"] = rows[0]
        return [mounting, *rows]

    def later(self, section):
        done = []
        with Npyfs(self.many.store, self.point) as mount:
            timed(["ls", "-l", mount / "g"], self.limit)
            for state in ("dropped", "repeated"):
                for what in self.commands():
                    row = Row(section, what, state, f"{what} {self.real}")
                    done.append(row)
                    if what == "ls -l":
                        self.rows[state] = row
                    if state == "dropped" and not ROOT:
                        row.notes["npyfs"] = row.notes["other"] = "needs root"
                        continue

                    def run(folder, what=what, state=state):
                        if state == "dropped":
                            drop(2)
                        return self.command(what, folder)

                    if state == "repeated":
                        run(mount / "g"), run(self.many.real)
                    measure([row], lambda: run(mount / "g"), [lambda: run(self.many.real)], self.pairs, mount.memory)
        return done

    def conditions(self):
        """Issue condition 2, for every state it can be read in."""
        shown = {"first": "first after the mount, indexing included", "dropped": "names and inodes dropped",
                 "repeated": "repeated"}
        for state, text in shown.items():
            row = self.rows.get(state)
            ratio = row.ratio() if row else None
            yield {"condition": f"ls -l of {self.many.count} at most 2 x the real files {self.real}: {text}",
                   "met": None if ratio is None else ratio <= 2,
                   "data": "not measured" if ratio is None else f"{ratio:.2f} x"}
