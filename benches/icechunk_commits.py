"""Icechunk's side of commits.py, run by a Python that has it. The first argument is JSON that says where the repository is.

    create                     makes the repository
    work PROCESS COMMITS       prints "ready", waits for a line, and commits so many new arrays, each in a session of its own and on top of what others
                               have committed by then; prints the seconds of each commit alone, and of all that it takes, as JSON
    judge PROCESSES COMMITS    fails unless each array is there with its value, and each was committed once"""

import json
import sys
import time

import icechunk
import numpy as np
import zarr


def repository(where, make=False):
    if where["kind"] == "s3":
        storage = icechunk.s3_storage(bucket=where["bucket"], prefix="icechunk", region="us-east-1", endpoint_url=where["url"], allow_http=True,
                                      access_key_id=where["key"], secret_access_key=where["secret"], force_path_style=True)
    else:
        storage = icechunk.azure_storage(account=where["key"], container=where["bucket"], prefix="icechunk", access_key=where["secret"],
                                         config={"azure_storage_endpoint": where["url"], "azure_allow_http": "true"})
    return icechunk.Repository.create(storage) if make else icechunk.Repository.open(storage)


def work(repo, process, count):
    print("ready", flush=True)
    sys.stdin.readline()
    alone, all_of_it = [], []
    for number in range(count):
        begin = time.perf_counter()
        session = repo.writable_session("main")
        name = f"p{process}n{number}"
        zarr.create_array(session.store, name=name, data=np.full(3, process * count + number))
        middle = time.perf_counter()
        session.commit(name, rebase_with=icechunk.ConflictDetector(), rebase_tries=60_000)
        end = time.perf_counter()
        alone.append(end - middle)
        all_of_it.append(end - begin)
    print(json.dumps({"alone": alone, "all": all_of_it}), flush=True)


def judge(repo, processes, count):
    wanted = sorted(f"p{process}n{number}" for process in range(processes) for number in range(count))
    messages = [snapshot.message for snapshot in repo.ancestry(branch="main")]
    assert [messages.pop(), messages.pop()] == ["Repository initialized", "group"]
    assert sorted(messages) == wanted, "a commit is missing, or there twice"
    group = zarr.open_group(repo.readonly_session("main").store, mode="r")
    for process in range(processes):
        for number in range(count):
            assert group[f"p{process}n{number}"][:].tolist() == [process * count + number] * 3


def main():
    where, command, *numbers = json.loads(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
    if command == "create":
        # With the group in which the arrays will be: made by several, it would be a conflict.
        session = repository(where, make=True).writable_session("main")
        zarr.create_group(session.store)
        session.commit("group")
    else:
        {"work": work, "judge": judge}[command](repository(where), *numbers)


if __name__ == "__main__":
    main()
