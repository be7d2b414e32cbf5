"""Histories: what processes of several hosts did with one store and were told, and whether that can be true. Nothing here runs npyfs.

A history is a list of `Event`s, whose times are those of one clock (CLOCK_MONOTONIC of the machine on which all hosts are). What became of it is a
list of `Made` commits, read from the bytes of the directory or the bucket. `problems(events, made, base)` says what cannot be true:

- The commits are one chain, and each layer is committed once.
- A commit that was confirmed is there, once, under the number that was told; one that was refused is not; one of which nobody was told whether it was
  made is there at most once.
- There is one order for all: who began after a commit was confirmed comes behind it. So do commits that nobody was told of.
- What was stored before its checkout was committed is in the commit, and nothing that nobody wrote.
- No commit changes what another one has changed since its checkout was begun, unless it was made with --ours.
- A revert restores what was there before, and only where nobody has changed it since, or each change was taken back.
- Who reads sees the state behind one of the commits: at least of all that were confirmed before. Who follows sees later and later ones.
- Who has lost a checkout to another host stores and commits nothing more in it.

Every value that is written is written once in a history, so that a value says where it comes from. None stands for an array that is not there."""

import json
from collections import defaultdict
from dataclasses import dataclass, field

from .checkout_reader import commit, entries

NEVER = float("inf")


@dataclass
class Event:
    """`told` is None if the process, or its host, has died: then `end` is `NEVER`.

    op       told                            and
    take     taken, refused                  a mount begins to write in `checkout`
    save     stored, failed                  `key` = `value` (None: deleted) in `checkout`; stored once fsync has succeeded
    commit   made, refused, nothing, unclear `checkout`, `number`, `ours`, `mounted`: by a mount; a command takes the checkout itself
    revert   made, refused, unclear          `of`, an id; `number`
    log      seen                            `seen`: ids, oldest first
    mount    seen                            `seen`: {key: value} that a new mount shows
    follow   seen                            `checkout` names the mount, `number` and `id` its commit afterwards; `seen` as above
    """

    op: str
    host: str
    begin: float
    end: float = NEVER
    told: str | None = None
    checkout: str | None = None
    key: str | None = None
    value: int | None = None
    number: int | None = None
    id: str | None = None
    mounted: bool = False
    of: str | None = None
    ours: bool = False
    seen: object = None
    why: str = ""  # what the program said, for people

    def __str__(self):
        parts = [f"{name} {value}" for name in ("checkout", "key", "value", "number", "of") if (value := getattr(self, name)) is not None]
        return f"{self.host}: {self.op} {', '.join(parts)} ({self.told}) at {self.begin:.2f} to {self.end:.2f}{self.why and ': ' + self.why}"


@dataclass
class Made:
    """A commit that is there. `changes` are {key: value}, of a revert what is restored."""

    id: str
    parents: list
    layer: str
    changes: dict
    write: str = ""
    time: int = 0
    reverts: str = ""


@dataclass
class _Check:
    events: list
    made: list
    base: dict
    found: list = field(default_factory=list)

    def __post_init__(self):
        self.numbers = {commit.id: number for number, commit in enumerate(self.made, 1)}
        self.states = [dict(self.base)]
        for commit in self.made:
            self.states.append({**self.states[-1], **commit.changes})
        self.saves = {event.value: event for event in self.of("save") if event.value is not None}
        self.commits = defaultdict(list)  # the numbers of the commits of a checkout
        for number, commit in enumerate(self.made, 1):
            if not commit.reverts:
                self.commits[checkout_of(commit.layer)].append(number)

    def of(self, *ops):
        return [event for event in self.events if event.op in ops]

    def say(self, *words):
        self.found.append(" ".join(map(str, words)))

    def named(self, number):
        commit = self.made[number - 1]
        return f"commit {number} ({commit.layer})"

    # --- the commits alone

    def chain(self):
        layers, writes, last = {}, {}, None
        for number, commit in enumerate(self.made, 1):
            if commit.parents != ([last.id] if last else []):
                self.say(self.named(number), "is not on top of the one before it")
            if last and commit.time <= last.time:
                self.say(self.named(number), "is not later than the one before it")
            for what, known, own in (("layer", layers, commit.layer), ("write", writes, commit.write or commit.id)):
                if own in known:
                    self.say(self.named(number), f"has the {what} of commit {known[own]}: it was made twice")
                known.setdefault(own, number)
            last = commit

    # --- what was told of commits

    def told(self):
        told = {}
        for event in self.of("commit", "revert"):
            if event.told != "made":
                continue
            if not 0 < event.number <= len(self.made):
                self.say("confirmed, and not there:", event)
                continue
            if event.number in told:
                self.say("confirmed twice:", event, "and", told[event.number])
            told[event.number] = event
            commit = self.made[event.number - 1]
            is_own = commit.reverts == event.of if event.op == "revert" else not commit.reverts and checkout_of(commit.layer) == event.checkout
            if not is_own:
                self.say("confirmed, and", self.named(event.number), "is in its place:", event)

        attempts = defaultdict(list)
        for event in self.of("commit", "revert"):
            attempts[event.op, event.checkout if event.op == "commit" else event.of].append(event)
        there = defaultdict(list)
        for number, commit in enumerate(self.made, 1):
            there["revert", commit.reverts].append(number) if commit.reverts else there["commit", checkout_of(commit.layer)].append(number)
        for key, numbers in there.items():
            own = attempts[key]
            least = sum(event.told == "made" for event in own)
            most = least + sum(event.told in (None, "unclear") for event in own)
            if len(numbers) > most:
                which = ", ".join(map(self.named, numbers))
                self.say(f"{len(numbers)} commits ({which}) of {most} that may be there:", *own)
        return told

    def order(self, told):
        """Numbers of confirmed commits against times, and of the others against the earliest time at which they can have been made."""
        begins = {number: event.begin for number, event in told.items()}
        for number, commit in enumerate(self.made, 1):
            if number not in begins:
                op, name = ("revert", commit.reverts) if commit.reverts else ("commit", checkout_of(commit.layer))
                tries = [event.begin for event in self.of(op) if (event.of if op == "revert" else event.checkout) == name and event.told in (None, "unclear")]
                begins[number] = min(tries, default=0)
        ended = sorted((event.end, number) for number, event in told.items())
        at, highest = 0, 0
        for begin, number in sorted((begin, number) for number, begin in begins.items()):
            while at < len(ended) and ended[at][0] < begin:
                highest = max(highest, ended[at][1])
                at += 1
            if number < highest:
                self.say(self.named(number), "was begun after", self.named(highest), "was confirmed, and is before it")
        return begins

    # --- what is in them

    def contents(self):
        written = {}
        for number, commit in enumerate(self.made, 1):
            if commit.reverts:
                continue
            for key, value in commit.changes.items():
                if value is None:
                    own = [save for save in self.of("save") if (save.checkout, save.key, save.value) == (checkout_of(commit.layer), key, None)]
                    if not own:
                        self.say(self.named(number), f"deletes {key}, which nobody did there")
                    continue
                save = self.saves.get(value)
                if save is None or (save.checkout, save.key) != (checkout_of(commit.layer), key):
                    self.say(self.named(number), f"has {key} = {value}, which nobody wrote there:", save)
                if value in written:
                    self.say(self.named(number), f"has {key} = {value}, as", self.named(written[value]))
                written.setdefault(value, number)

        stored = defaultdict(list)
        for save in self.of("save"):
            stored[save.checkout, save.key].append(save)
        for event in self.of("commit"):
            if event.told != "made" or not 0 < event.number <= len(self.made):
                continue
            mine = [number for number in self.commits[event.checkout] if number <= event.number]
            for (checkout, key), saves in stored.items():
                before = [save for save in saves if checkout == event.checkout and save.told == "stored" and save.end <= event.begin]
                if not before:
                    continue
                save = max(before, key=lambda save: save.begin)
                there = [self.made[number - 1].changes[key] for number in mine if key in self.made[number - 1].changes]
                if not there:
                    # An array that only the layer had is gone without a word.
                    if save.value is not None:
                        self.say("stored, committed as", self.named(event.number), "and in no commit:", save)
                    continue
                later = [other.value for other in saves if other.begin >= save.begin]
                if there[-1] not in later:
                    self.say("stored, and", self.named(event.number), f"has {there[-1]} in its place:", save)

    def conflicts(self, begins):
        takes = defaultdict(list)
        for take in self.of("take"):
            if take.told == "taken":
                takes[take.checkout].append(take.end)
        ours = {event.checkout for event in self.of("commit") if event.ours}
        ends = {event.number: event.end for event in self.of("commit") if event.told == "made"}
        for checkout, numbers in self.commits.items():
            begun = min(takes[checkout], default=NEVER)
            for number in numbers:
                for other in range(1, number) if checkout not in ours else ():
                    both = self.made[other - 1].changes.keys() & self.made[number - 1].changes.keys()
                    if both and begins[other] > begun and other not in numbers:
                        self.say(self.named(number), f"was begun before {self.named(other)} and changes {', '.join(sorted(both))}, as that does")
                # A mount that commits goes on on top of its own commit.
                begun = ends.get(number, NEVER)

    def reverts(self):
        for number, commit in enumerate(self.made, 1):
            if not commit.reverts:
                continue
            old = self.numbers.get(commit.reverts)
            if old is None or old >= number:
                self.say(self.named(number), "reverts what is not before it")
                continue
            keys = self.made[old - 1].changes.keys()
            wanted = {key: self.states[old - 1].get(key) for key in keys}
            if commit.changes != wanted:
                self.say(self.named(number), f"makes {commit.changes} of {self.named(old)}, before which it was {wanted}")
            before, now = self.states[old], self.states[number - 1]
            changed = {key for key in keys if before.get(key) != now.get(key)}
            for other in range(old + 1, number):
                if both := changed & self.made[other - 1].changes.keys():
                    self.say(self.named(number), f"takes back {self.named(old)}, and {self.named(other)} has changed {', '.join(sorted(both))}")

    # --- who has lost a checkout

    def lost(self):
        takes = defaultdict(list)
        for take in self.of("take"):
            if take.told == "taken":
                takes[take.checkout].append(take)
        everything = {value for commit in self.made for value in commit.changes.values()}
        for event in self.of("save", "commit"):
            if event.op == "commit" and not event.mounted:
                continue
            sessions = sorted(takes[event.checkout], key=lambda take: take.end)
            own = [at for at, take in enumerate(sessions) if take.host == event.host and take.end <= event.begin]
            if not own:
                continue
            for other in sessions[own[-1] + 1:]:
                if other.host == event.host or other.end >= event.begin:
                    continue
                if event.told in ("stored", "made"):
                    self.say(f"{event.told}, after {other.host} has taken the checkout at {other.end:.2f}:", event)
                elif event.op == "save" and event.value in everything - {None}:
                    self.say(f"committed, and {other.host} had taken the checkout at {other.end:.2f}:", event)

    # --- who reads

    def bounds(self, event, told, begins):
        """The numbers of the oldest and the newest commit whose state somebody may see."""
        low = max((number for number, other in told.items() if other.end < event.begin), default=0)
        high = max((number for number, begin in begins.items() if begin < event.end), default=0)
        return low, high

    def readers(self, told, begins):
        ids = [commit.id for commit in self.made]
        for event in self.of("log", "mount"):
            if event.told != "seen":
                continue
            low, high = self.bounds(event, told, begins)
            if event.op == "log":
                count = len(event.seen)
                if event.seen != ids[:count]:
                    self.say("no prefix of the commits is", [self.numbers.get(one, one) for one in event.seen], event)
                elif not low <= count <= high:
                    self.say(f"{count} commits, and there were {low} to {high}:", event)
            elif not any(shows(event.seen, self.states[number]) for number in range(low, high + 1)):
                near = [number for number, state in enumerate(self.states) if shows(event.seen, state)]
                self.say(f"shows no state from commit {low} to {high} ({f'that of {near}' if near else 'none at all'}):", event, event.seen)

    def followers(self, told, begins):
        at, keys = defaultdict(int), {}
        for event in sorted(self.of("follow"), key=lambda event: event.begin):
            if event.told != "seen":
                continue
            who, number = (event.host, event.checkout), event.number
            if not 0 <= number <= len(self.made) or number and self.made[number - 1].id != event.id:
                self.say("follows a commit that is not there:", event)
                continue
            if number < at[who]:
                self.say(f"went back from commit {at[who]}:", event)
            at[who] = number
            if number > self.bounds(event, told, begins)[1]:
                self.say("follows a commit before it was begun:", event)
            for key in {*self.base, *(key for commit in self.made for key in commit.changes)}:
                value = event.seen.get(key)
                first = keys.get((who, key), 0)
                fits = next((place for place in range(first, number + 1) if self.states[place].get(key) == value), None)
                if fits is None:
                    self.say(f"shows {key} = {value}, which is in no commit from {first} to {number}:", event)
                keys[who, key] = first if fits is None else fits
            for key in event.seen.keys() - {key for state in self.states[:number + 1] for key in state}:
                self.say(f"shows {key}, which nobody wrote:", event)

    def all(self):
        self.chain()
        told = self.told()
        begins = self.order(told)
        self.contents()
        self.conflicts(begins)
        self.reverts()
        self.lost()
        self.readers(told, begins)
        self.followers(told, begins)
        return self.found


def shows(seen, state):
    """Whether a view of all arrays is that of a state."""
    return seen == {key: value for key, value in state.items() if value is not None}


def checkout_of(layer):
    """The name of the checkout whose layer a directory is."""
    name, mark, number = layer.rpartition("~")
    return name if mark and number.isdigit() else layer


def problems(events, made, base):
    """What cannot be true, a line each; `base` is {key: value} of the store itself."""
    return _Check(list(events), list(made), dict(base)).all()


# --- as files

def parse(lines):
    """Events from JSON lines: an event without its end first, then with it. Who writes them may have died in the middle."""
    found = {}
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        event = record.pop("event")
        found[event] = Event(**record)
    return list(found.values())


def read_made(directory, value_of, base):
    """The commits in a directory of checkouts; `value_of(file, key)` reads an array of a layer's file."""
    made, by_layer = [], {}
    # Each by itself: whether they are a chain is for `problems` to say.
    for path in sorted(directory.glob("commits/*.json")):
        record = commit(path, path.read_text().removesuffix("\n"))
        layer = directory / record["layer"]
        by_layer[record["layer"]] = own = {}
        for key, entry in entries(layer).items():
            if key in record["without"]:
                continue
            if "restored" in entry:
                old = entry["restored"].get("layer")
                own[key] = base.get(key) if old is None else by_layer.get(old, {}).get(key)
            elif entry["stored"] is None:
                own[key] = None
            else:
                own[key] = value_of(layer / f"{entry['stored']['file']:016}.h5", key)
        made.append(Made(record["id"], record["parents"], record["layer"], own, record["write"], record["time"], record.get("reverts", "")))
    return made
