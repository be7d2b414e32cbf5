"""The promises of the README: its sentences, and the tests that prove each. Names with a dot are Python's (file and function),
names with `::` are Rust's (test binary, or `lib`, and path). docs/promises.md says more about each."""

import pathlib
import re

PROMISES = {
    "The bytes of a virtual `.npy` are the bytes `np.save` writes for the same array: same header, same padding.": [
        "test_sweep.test_types_orders_layouts_ranks",
        "test_sweep.test_maximum_shapes",
        "test_daf_fixtures.test_every_entry_through_the_mount",
        "test_matlab.test_what_hdf5storage_writes",
        "api::every_number_of_every_demonstration_store_is_what_ndarray_npy_reads",
    ],
    "A mount never changes, locks or truncates a store, whatever is written into a checkout.": [
        "test_checkout_commands.test_an_exported_file_is_the_store_with_the_changes_and_nothing_else",
        "test_manners.test_the_store_is_neither_changed_nor_locked",
        "test_manners.test_every_write_is_refused",
    ],
    "A write is all or nothing. `close` and `fsync` say whether it was stored; what is refused gets an errno that fits and a "
    "line in `errors.log`, and what stood there before stays until the new one is complete. What a failed `fsync` leaves is "
    "tried again, or is lost and named.": [
        "test_arkouda_write.test_a_member_that_is_open_and_unchanged_is_part_of_what_is_stored",
        "test_checkout.test_bad_input_is_told_and_the_old_content_stays",
        "test_checkout_limits.test_a_disk_that_fills",
        "test_checkout_faults.test_whatever_call_fails_each_change_happens_or_does_not",
        "test_checkout_faults.test_what_a_failed_fsync_leaves_is_tried_again_or_lost_by_name",
        "test_checkout_crash.test_what_fsync_confirmed_is_there_after_kill_9",
        "checkout::what_was_stored_survives_a_kill_and_nothing_is_there_in_part",
    ],
    "What `fsync` confirmed survives `kill -9` of the daemon at any later instant.": [
        "test_checkout_crash.test_what_fsync_confirmed_is_there_after_kill_9",
        "test_hangar_crash.test_kill_at_any_time",
    ],
    "A change made through npyfs, or by a Hangar commit, never makes another object look newer: `make` rebuilds exactly what "
    "depends on it.": [
        "test_checkout_limits.test_make_builds_exactly_what_changed",
        "test_checkout_commands.test_make_rebuilds_what_changed_and_nothing_else_after_commit_and_export",
        "test_hangar_live.test_make_rebuilds_what_a_commit_touched",
    ],
    "A damaged or hostile file costs an error on that object, at worst on that file. "
    "The mount lives; no other object notices.": [
        "test_malformed.test_all_in_one_tree",
        "test_malformed.test_a_damaged_object_is_EIO_there_and_nowhere_else",
        "test_malformed.test_every_byte_of_a_small_store_damaged",
        "test_workers.test_killed_workers_are_replaced_and_no_reader_sees_an_error",
    ],
    "Nothing outside the mounted store is read because a file inside it says so.": [
        "test_external.test_nothing_from_outside_appears",
        "test_external.test_what_is_denied_is_a_file_that_cannot_be_opened",
    ],
    '`np.load(path, mmap_mode="r")` works on every virtual `.npy` that has elements.': [
        "test_sweep.test_layouts_and_chunk_indexes",
        "test_daf_fixtures.test_every_entry_through_the_mount",
        "test_cache.test_a_file_that_samples_were_taken_from_can_still_be_mapped",
    ],
    "What was committed in a checkout can be taken back, and an export opens in the library whose format it has: its rules are "
    "checked before it gets its name.": [
        "test_checkout_revert.test_a_commit_is_taken_back_and_brought_back",
        "test_checkout_revert_faults.test_random_commits_and_what_takes_them_back",
        "test_checkout_revert_formats.test_the_rules_of_daf_hold_afterwards",
        "test_checkout_daf.test_commit_and_export_refuse_what_breaks_the_rules_of_daf",
        "test_checkout_commands.test_an_exported_file_is_the_store_with_the_changes_and_nothing_else",
    ],
    "Where a store lies makes no difference to what it shows: a disk, a bucket, another host. Only speed may tell.": [
        "test_remote_fixtures.test_sweep_over_types_layouts_and_filters",
        "test_remote_prefix.test_a_prefix_shows_what_the_directory_shows",
        "test_remote_hangar.test_every_branch_commit_and_column",
        "test_remote_checkout.test_what_is_written_over_a_remote_store_is_committed_and_exported",
    ],
}


ROOT = pathlib.Path(__file__).parents[2]


def promises():
    """The numbered list under "## Promises", each entry on one line."""
    section = (ROOT / "README.md").read_text().split("## Promises")[1].split("\n## ")[0]
    return [re.sub(r"\s+", " ", entry).strip() for entry in re.split(r"^\d+\. ", section, flags=re.M)[1:]]


def explained():
    """[(promise, tests)] of docs/promises.md: what each section quotes, and the tests that it lists."""
    sections = re.split(r"^## \d+\. .*$", (ROOT / "docs/promises.md").read_text(), flags=re.M)[1:]
    return [(" ".join(re.findall(r"^> (.*)$", section, flags=re.M)), re.findall(r"^\* `(\w+(?:\.|::)[\w:]+)`$", section, flags=re.M))
            for section in sections]


def judge(results, table=None, *, with_rust=True):
    """What is wrong with a run of all tests, and what should be known of it. `results` is {test: {outcome: count}}.

    Each test must have run and passed. One that was skipped, for which the machine must have had a reason, is a note as
    long as another test of the same promise passed."""
    problems, notes = [], []
    for number, (promise, tests) in enumerate((PROMISES if table is None else table).items(), 1):
        passed = 0
        skipped = []
        for test in tests:
            if "::" in test and not with_rust:
                notes.append(f"promise {number}: {test} is in Rust, whose results are not here")
                continue
            got = results.get(test, {})
            if not got:
                problems.append(f"promise {number}: {test} did not run")
            elif got.get("failed"):
                problems.append(f"promise {number}: {test} failed")
            elif got.get("passed"):
                passed += 1
            else:
                skipped.append(test)
        if skipped and passed:
            notes += [f"promise {number}: {test} was skipped" for test in skipped]
        elif not passed:
            problems.append(f"promise {number}: nothing that proves it passed: {promise}")
    return problems, notes
