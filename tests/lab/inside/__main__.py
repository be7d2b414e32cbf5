"""What runs in a machine of the laboratory: the rounds that its task names, in this boot and in the next one. Python 3.9 and NumPy alone."""

import importlib
import subprocess
import sys
import traceback

import machine


def main():
    task = machine.task()
    try:
        importlib.import_module(task["suite"]).main(task)
    except BaseException:
        machine.report("lab", "failed", traceback.format_exc()[-2000:])
    if task["suite"] != "ordinary" or machine.boot() == 2:
        machine.tell(end=True)
    subprocess.run(["systemctl", "poweroff"], stdin=subprocess.DEVNULL)


sys.exit(main())
